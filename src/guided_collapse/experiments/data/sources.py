"""Data sets by name: where they live, how they are loaded, and which of their files are verified."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from guided_collapse.experiments.data.archives import decoded, find_idx, load_archive, load_idx
from guided_collapse.experiments.data.augment import resize
from guided_collapse.experiments.data.folders import find_splits, load_folder
from guided_collapse.experiments.data.known import KNOWN, KnownData, known_data
from guided_collapse.experiments.data.pictures import Pictures
from guided_collapse.experiments.data.split import ImageData, Split, hold_out
from guided_collapse.experiments.errors import InputError
from guided_collapse.lazy import optional

VARIABLE = "GUIDED_COLLAPSE_DATA"
SYSTEM_FOLDER = Path("/usr/share/datasets")  # where Debian's package dataset-fashion-mnist puts its folder
LABEL_COLUMNS = ("fine_label", "label", "labels")  # CIFAR-100 has a coarse_label too


class MissingData(InputError):  # noqa: N818  # its name states what is wrong on the disk, without the suffix Error
    """A data set is missing; the message says how to get it."""


def data_folder(name: str, root: Path | None) -> Path:
    """Returns a data set's folder in `root`, by default $GUIDED_COLLAPSE_DATA or else `guided-collapse` in the user's cache."""
    if root is None and (chosen := os.environ.get(VARIABLE)):
        root = Path(chosen).expanduser()
    if root is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guided-collapse"
    return root / name


def load_data(name: str, *, root: Path | None = None, image_size: int | None = None) -> ImageData:
    """Loads the named data set from its folder under `root`.

    The folder may hold an archive, IDX files, class folders (in train and test), or parquet files from the hub. The first
    of these that exists is used. Known checksums are verified. Only `download` also checks the numbers of images and classes.

    Args:
        name: a key of `KNOWN`.
        root: the folder of all data sets; for the default, see `data_folder`.
        image_size: height and width to resize images to; if None, the size in `KNOWN`, for example 256 for imagenet.

    Raises:
        MissingData: if the data set is missing; the message has the command that gets it.
        ValueError: for an unknown name, damaged files, or files with the wrong checksum.
    """
    known = known_data(name)
    size = image_size or known.image_size
    data = load_digits() if name == "digits" else _load(name, known, data_folder(name, root), size)

    def resized(split: Split) -> Split:
        if not isinstance(split.images, Tensor) or split.images.shape[2:] == (size, size):
            return split
        return Split(resize(split.images, size), split.labels)

    return replace(data, train=resized(data.train), test=resized(data.test))


def load_digits() -> ImageData:
    """Loads scikit-learn's handwritten digits, gray levels 0 ... 16 scaled to 0 ... 255, always with the same test images."""
    bundle = optional("sklearn.datasets", extra="experiments", package="scikit-learn").load_digits()
    levels = np.rint(bundle.images * (255 / 16)).astype(np.uint8)
    everything = Split(torch.from_numpy(levels)[:, None], torch.from_numpy(bundle.target.astype(np.int64)))
    known = KNOWN["digits"]
    parts = hold_out(everything.labels, known.num_test, seed=None)
    return ImageData("digits", everything.take(parts.train), everything.take(parts.test), known.class_names or ())


def _load(name: str, known: KnownData, folder: Path, size: int) -> ImageData:
    for archive in known.archives:
        if (folder / archive).is_file():
            return load_archive(folder / archive, name=name, known=known, archive=archive, cache=folder / "decoded.npz")
    for place in (folder, SYSTEM_FOLDER / name):
        if find_idx(place):
            return load_idx(place, name=name, known=known)
    # Class folders first: looking for parquet files among a million images takes a while.
    train = find_splits(folder).get("train") if folder.is_dir() else None
    if train is not None and any(entry.is_dir() for entry in train.iterdir()):
        return replace(load_folder(folder, image_size=size), name=name)
    if any(folder.rglob("*.parquet")):
        return load_parquet(folder, name=name, channels=known.channels, image_size=size, test_part=known.test_part)
    raise MissingData(f"{name} must be in {folder}; it is not. Run: guided-collapse data {name}")


def load_parquet(folder: Path, *, name: str, channels: int, image_size: int, test_part: str) -> ImageData:
    """Loads a data set from parquet files, anywhere below the folder, with a column of images and a column of labels.

    Hugging Face `datasets` converts them once to memory-mapped Arrow files, from which splits too large for memory are streamed.
    """
    datasets = optional("datasets", extra="experiments")
    splits: list[Split] = []
    class_names: list[str] | None = None
    for part in ("train", test_part):
        files = find_parquet(folder, part)
        cache = str(folder / "arrow") if os.access(folder, os.W_OK) else None
        try:
            rows = datasets.Dataset.from_parquet([str(file) for file in files], cache_dir=cache)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = error.__cause__ or error
            raise ValueError(f"{files[0].parent} must hold readable parquet files; reading {part} failed: {reason}") from error
        images = [column for column, kind in rows.features.items() if isinstance(kind, datasets.Image | dict)]
        labels = [column for column in LABEL_COLUMNS if column in rows.features]
        if not images or not labels:
            raise ValueError(
                f"{files[0]} must have a column of images and a column of labels ({', '.join(LABEL_COLUMNS)}); "
                f"it has {', '.join(rows.features)}."
            )
        numbers = np.array(rows[labels[0]][:])
        if not np.issubdtype(numbers.dtype, np.integer):
            raise ValueError(f"labels must be integers; the column {labels[0]} of {files[0]} holds {numbers.dtype}.")
        class_names = class_names or getattr(rows.features[labels[0]], "names", None)
        encoded = rows.cast_column(images[0], datasets.Image(decode=False))[images[0]]
        pictures = Pictures(encoded, (channels, image_size, image_size), where=str(files[0].parent))
        splits.append(Split(_cached(pictures, files, folder / f"decoded-{part}.npz"), torch.from_numpy(numbers.astype(np.int64))))
    most = max(int(split.labels.max()) for split in splits)
    return ImageData(name, splits[0], splits[1], tuple(class_names or map(str, range(most + 1))), folder)


def _cached(pictures: Pictures, files: list[Path], cache: Path) -> Tensor | Pictures:
    if not pictures.fit_in_memory:
        return pictures
    arrays = decoded(cache, files, lambda: {"images": pictures.to_memory().numpy()}, variant=str(pictures.shape))
    return torch.from_numpy(arrays["images"])


def find_parquet(folder: Path, part: str) -> list[Path]:
    """Returns the parquet files of a part at any depth, in order; the hub names them like train-00000-of-00002.parquet."""
    found = sorted(folder.rglob(f"{part}-*-of-*.parquet"))
    totals = {int(number) for path in found for number in re.findall(r"-of-(\d+)", path.stem)}
    if totals != {len(found)}:
        raise ValueError(
            f"{folder} must hold every parquet file of {part} once, named as {part}-00000-of-00001.parquet; "
            f"it has {len(found)} of {min(totals, default='them')}. Download them again."
        )
    return found
