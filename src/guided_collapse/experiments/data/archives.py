"""Data sets in the files their authors publish, read without unpacking them: IDX files, and zip and tar archives."""

import contextlib
import gzip
import hashlib
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.experiments.data.known import KnownData
from guided_collapse.experiments.data.pictures import SUFFIXES, Pictures
from guided_collapse.experiments.data.split import ImageData, Split
from guided_collapse.experiments.files import atomic_write

Arrays = Mapping[str, npt.NDArray[np.generic]]
"""Arrays by name; those of an archive are train_images, train_labels, test_images, test_labels and class_names."""

PARTS = ("train", "test")
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ANNOTATIONS = "val_annotations.txt"


def compare_checksum(name: str, path: Path, expected: str | None) -> None:
    """Raises ValueError if the checksum of the file is not the expected one; does nothing if `expected` is None.

    A checksum of 32 digits is MD5, and any other is SHA-256. A gzipped IDX file is decompressed first.
    """
    if expected is None:
        return
    algorithm = "md5" if len(expected) == 32 else "sha256"
    if (found := hashlib.new(algorithm, _contents(path)).hexdigest()) != expected:
        raise ValueError(
            f"{path} must have the {algorithm} {expected}; it has {found}. Remove it and run: guided-collapse data {name}. "
            "To use data of your own, put the images into class folders and pass --data FOLDER."
        )


def find_idx(folder: Path) -> dict[str, Path]:
    """Returns the IDX files in the folder, up to four, by their names without .gz, such as train-images-idx3-ubyte."""
    return {stem: path for stem in IDX_FILES for path in (folder / f"{stem}.gz", folder / stem) if path.is_file()}


def load_idx(folder: Path, *, name: str, known: KnownData) -> ImageData:
    """Returns the data set in four IDX files, gzipped or not; raises ValueError if one is missing, damaged or altered."""
    files = find_idx(folder)
    if lacking := [stem for stem in IDX_FILES if stem not in files]:
        raise ValueError(f"{folder} must hold all four IDX files, with or without .gz; it lacks {', '.join(lacking)}.")
    for stem, path in files.items():
        compare_checksum(name, path, known.checksums.get(stem))
    images, labels, test_images, test_labels = (torch.from_numpy(read_idx(files[stem])) for stem in IDX_FILES)
    train, test = Split(images[:, None], labels.long()), Split(test_images[:, None], test_labels.long())
    return ImageData(name, train, test, known.class_names or (), folder)


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Returns the array in an IDX file of unsigned bytes.

    The file starts with two zero bytes, a byte for the type, and a byte for the number of dimensions. Then come the size of each
    dimension, as a big-endian 32-bit integer, and the elements.
    """
    contents = _contents(path)
    end = 4 + 4 * contents[3]
    return np.frombuffer(contents, dtype=np.uint8, offset=end).reshape(np.frombuffer(contents[4:end], dtype=">u4")).copy()


def _contents(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.name.endswith("-ubyte.gz") else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be readable; reading it failed: {error}") from error


def load_archive(path: Path, *, name: str, known: KnownData, archive: str, cache: Path | None = None) -> ImageData:
    """Returns a data set from `path`, a copy of its published `archive`; raises ValueError if it is damaged or altered.

    The checksum is compared when the images are decoded; later calls load the decoded images from the .npz file `cache`.
    """

    def build() -> Arrays:
        compare_checksum(name, path, known.checksums.get(archive))
        return READERS[known.archive_reader](path, known)

    arrays = build() if cache is None else decoded(cache, [path], build, variant=known.archive_reader)
    train, test = (Split(torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])) for part in PARTS)
    return ImageData(name, train, test, known.class_names or tuple(arrays["class_names"].tolist()), path)


def decoded(cache: Path, sources: Sequence[Path], build: Callable[[], Arrays], *, variant: str) -> Arrays:
    """Returns the arrays in the .npz file `cache` if it is valid; otherwise calls `build` and caches the arrays that it returns.

    The cache is valid for one `variant`, as long as the names, sizes and modification times of the source files stay the same.
    """
    stamp = json.dumps([variant, *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sources)])
    with contextlib.suppress(Exception), cache.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        if str(stored["stamp"]) == stamp:
            return {name: stored[name] for name in stored.files if name != "stamp"}
    arrays = build()
    with contextlib.suppress(OSError), atomic_write(cache) as beside, beside.open("wb") as written:
        np.savez(written, **arrays, stamp=np.array(stamp))  # type: ignore[arg-type]  # its stub takes arrays for allow_pickle
    return arrays


def read_members(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Returns the contents of the wanted files of a zip or tar archive, by name; raises ValueError for a damaged archive."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return {info.filename: archive.read(info) for info in archive.infolist() if wanted(info.filename)}
        with tarfile.open(path, "r:gz") as archive:
            files = ((member.name, archive.extractfile(member)) for member in archive if member.isreg() and wanted(member.name))
            return {name: file.read() for name, file in files if file is not None}
    except Exception as error:  # a damaged archive can fail in any layer of the standard library
        raise ValueError(f"{path} must be a zip or tar archive; reading it failed: {error}") from error


def read_cifar(path: Path, known: KnownData) -> Arrays:
    """Returns the arrays of CIFAR-10 or CIFAR-100.

    In the files, each image is stored as one byte for its label and then its pixels, channel by channel. In CIFAR-100, a byte for
    the coarse label comes first.
    """
    names, before_pixels, files = "fine_label_names.txt", 2, {"train": ["train.bin"], "test": ["test.bin"]}
    if known.num_classes == 10:
        names, before_pixels = "batches.meta.txt", 1
        files = {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]}
    wanted = {names, *files["train"], *files["test"]}
    members = read_members(path, lambda name: PurePosixPath(name).name in wanted)
    contents = {PurePosixPath(name).name: content for name, content in members.items()}
    class_names = contents[names].decode("ascii", errors="replace").split()
    arrays: dict[str, npt.NDArray[np.generic]] = {"class_names": np.array(class_names)}
    shape = (known.channels, known.image_size, known.image_size)
    length = before_pixels + int(np.prod(shape))
    for part in PARTS:
        rows = np.frombuffer(b"".join(contents[file] for file in files[part]), dtype=np.uint8).reshape(-1, length)
        arrays[f"{part}_images"] = rows[:, before_pixels:].reshape(-1, *shape).copy()
        arrays[f"{part}_labels"] = rows[:, before_pixels - 1].astype(np.int64)
    return arrays


class Sample(NamedTuple):
    """An image in an archive: its part (train or test), the name of its class, and the name of its file."""

    part: str
    class_name: str
    member: str


def read_tiny_imagenet(path: Path, known: KnownData) -> Arrays:
    """Returns the arrays of Tiny ImageNet: train/CLASS/images/FILE for training, and val/images/FILE for testing.

    The classes of validation images are in val/val_annotations.txt; each line has a file, its class, and a bounding box. The
    published test part has no labels and is skipped.
    """
    contents = read_members(path, lambda name: _is_picture(name) or PurePosixPath(name).name == ANNOTATIONS)
    annotations = next((text for name, text in contents.items() if PurePosixPath(name).name == ANNOTATIONS), b"")
    lines = [line.split("\t") for line in annotations.decode("utf-8", errors="replace").splitlines()]
    classes = {line[0]: line[1] for line in lines}
    samples = []
    for member in sorted(filter(_is_picture, contents)):
        match PurePosixPath(member).parts[-4:]:
            case ("train", class_name, "images", _):
                samples.append(Sample("train", class_name, member))
            case (*_, "val", "images", file):
                samples.append(Sample("test", classes[file], member))
    return _decode_samples(path, contents, samples, known)


def read_tiny_imagenet_100(path: Path, known: KnownData) -> Arrays:
    """Returns the arrays of the Tiny ImageNet images that `listed_samples` names, whatever their folders in the archive."""
    listed = listed_samples()
    files = {sample.member for sample in listed}
    members = read_members(path, lambda name: PurePosixPath(name).name in files)
    contents = {PurePosixPath(member).name: content for member, content in members.items()}
    if lacking := sorted(files - contents.keys()):
        raise ValueError(f"{path} must hold the {len(files)} files of the list; it lacks {len(lacking)}, such as {lacking[0]}.")
    return _decode_samples(path, contents, listed, known)


def listed_samples() -> list[Sample]:
    """Returns the images of tiny-imagenet-100, in order; all are from the published training part.

    Each line of the list has a class and the numbers of its training and of its test files, as in `n03255030 0-299 300-349`.
    """
    text = resources.files("guided_collapse.experiments.data").joinpath("tiny_imagenet_100.txt").read_text(encoding="ascii")
    listed = []
    for class_name, *numbers in (line.split() for line in text.splitlines()):
        for part, bounds in zip(PARTS, numbers, strict=True):
            first, last = map(int, bounds.split("-"))
            listed += [Sample(part, class_name, f"{class_name}_{number}.JPEG") for number in range(first, last + 1)]
    return listed


def read_omniglot(path: Path, known: KnownData) -> Arrays:
    """Returns the arrays of Omniglot, whose files are ALPHABET/CHARACTER/FILE; each character of an alphabet is a class.

    Of the 20 drawings of a character, the third, eighth, thirteenth and eighteenth by file name are held out for testing. Files are
    numbered by the person who drew them, so the same four people are held out throughout an alphabet.
    """
    contents = read_members(path, _is_picture)
    characters: dict[str, list[str]] = {}
    for member in sorted(contents):
        characters.setdefault("/".join(PurePosixPath(member).parts[-3:-1]), []).append(member)
    samples = [
        Sample("test" if number % 5 == 2 else "train", name, member)
        for name, members in characters.items()
        for number, member in enumerate(members)
    ]
    return _decode_samples(path, contents, samples, known)


READERS: Mapping[str, Callable[[Path, KnownData], Arrays]] = {
    "cifar": read_cifar,
    "tiny-imagenet": read_tiny_imagenet,
    "tiny-imagenet-100": read_tiny_imagenet_100,
    "omniglot": read_omniglot,
}


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _decode_samples(path: Path, contents: Mapping[str, bytes], samples: Sequence[Sample], known: KnownData) -> Arrays:
    class_names = sorted({sample.class_name for sample in samples if sample.part == "train"})
    index = {name: position for position, name in enumerate(class_names)}
    arrays: dict[str, npt.NDArray[np.generic]] = {"class_names": np.array(class_names)}
    shape = (known.channels, known.image_size, known.image_size)
    for part in PARTS:
        chosen = [sample for sample in samples if sample.part == part]
        if not chosen or any(sample.class_name not in index for sample in chosen):
            raise ValueError(f"{path} must have training and test images of the same classes; it lacks some of {part}.")
        members = [sample.member for sample in chosen]
        pictures = Pictures([contents[member] for member in members], shape, names=members, where=str(path))
        arrays[f"{part}_images"] = pictures.to_memory().numpy()
        arrays[f"{part}_labels"] = np.array([index[sample.class_name] for sample in chosen], dtype=np.int64)
    return arrays
