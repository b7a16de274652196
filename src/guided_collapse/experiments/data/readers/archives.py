"""Zip and tar archives of data sets, read without unpacking them to disk."""

import contextlib
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.experiments.data.known import KnownData
from guided_collapse.experiments.data.readers.decoded import Arrays, decoded
from guided_collapse.experiments.data.readers.pictures import SUFFIXES, Pictures
from guided_collapse.experiments.data.split import ImageData, Split

LARGEST_MEMBER = 2**28  # bytes; the largest file of the real archives has 154 million
MOST_BYTES = 2**32  # of all files that are read together
PARTS = ("train", "test")


class Sample(NamedTuple):
    """A picture in an archive: train or test, the name of its class, and the name of its file."""

    part: str
    class_name: str
    member: str


class Contents:
    """Pictures of an archive, in order.

    Args:
        contents: of the files, by name.
        names: of the files that are wanted.
        archive: where they are, for errors.
    """

    def __init__(self, contents: Mapping[str, bytes], names: Sequence[str], archive: Path) -> None:
        self.contents, self.names, self.archive = contents, names, archive

    def __len__(self) -> int:
        return len(self.names)

    def source(self, index: int) -> Path | bytes:
        """The contents of the file."""
        return self.contents[self.names[index]]

    def name(self, index: int) -> str:
        """File and archive."""
        return f"{self.names[index]} in {self.archive}"


def load_archive(path: Path, *, name: str, known: KnownData, cache: Path) -> ImageData:
    """A data set from its archive, by the reader that it declares; the decoded images are kept.

    Args:
        path: the archive.
        name: of the data set.
        known: its declaration.
        cache: the .npz file for the decoded images.

    Raises:
        ValueError: for an archive that is damaged or incomplete.
    """
    module, reader = known.archive_reader.split(":")
    read: Callable[[Path, KnownData], Arrays] = getattr(import_module(module), reader)
    with contextlib.suppress(OSError):  # without the folder, decoding again costs time
        cache.parent.mkdir(parents=True, exist_ok=True)
    arrays = decoded(cache, [path], lambda: read(path, known), variant=known.archive_reader)
    train, test = (Split(torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])) for part in PARTS)
    return ImageData(name, train, test, known.class_names or tuple(arrays["class_names"].tolist()), path)


def is_picture(name: str) -> bool:
    """Whether a file of that name is taken for a picture."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def decode_samples(path: Path, contents: Mapping[str, bytes], samples: Sequence[Sample], known: KnownData) -> Arrays:
    """Images, uint8 (num_samples, channels, height, width), and labels, int64 (num_samples,), of both parts, and names of classes.

    Raises:
        ValueError: for no samples in a part, a class in test alone, or an unreadable picture.
    """
    class_names = sorted({sample.class_name for sample in samples if sample.part == "train"})
    index = {name: position for position, name in enumerate(class_names)}
    arrays: dict[str, npt.NDArray[np.generic]] = {"class_names": np.array(class_names)}
    for part in PARTS:
        chosen = [sample for sample in samples if sample.part == part]
        if not chosen or any(sample.class_name not in index for sample in chosen):
            raise ValueError(f"{path} must have training and test images of the same classes; it lacks some of {part}.")
        shape = (known.channels, known.image_size, known.image_size)
        pictures = Pictures(Contents(contents, [sample.member for sample in chosen], path), shape)
        arrays[f"{part}_images"] = pictures.to_memory().numpy()
        arrays[f"{part}_labels"] = np.array([index[sample.class_name] for sample in chosen], dtype=np.int64)
    return arrays


def read_members(path: Path, wanted: Callable[[str], bool], *, what: str = "a zip or tar archive") -> dict[str, bytes]:
    """The contents of the files of a zip or gzipped tar archive that are wanted, by name; all others are passed over.

    Args:
        path: the archive.
        wanted: whether a file of that name is.
        what: the archive ought to be, for errors.

    Raises:
        ValueError: for an archive that is damaged or would take too much memory, or what is wanted and not a regular file with a
            name that stays inside the archive.
    """
    contents: dict[str, bytes] = {}
    total = 0
    try:
        for member in _zip_members(path) if zipfile.is_zipfile(path) else _tar_members(path):
            if not wanted(member.name):
                continue
            _check(member)
            total += member.size
            if total > MOST_BYTES:
                raise ValueError(f"its files have more than {MOST_BYTES:,} bytes together")
            contents[member.name] = member.read()
    except Exception as error:  # a damaged archive can fail in any of the many layers that take it apart
        raise ValueError(f"{path} must be {what}; reading it failed: {error}") from error
    return contents


class _Member(NamedTuple):
    """A file of an archive."""

    name: str
    size: int
    regular: bool
    read: Callable[[], bytes]


def _zip_members(path: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was made on a system without kinds
            yield _Member(info.filename, info.file_size, kind in (0, stat.S_IFREG), partial(archive.read, info))


def _tar_members(path: Path) -> Iterator[_Member]:
    with tarfile.open(path, "r:gz") as archive:
        for info in archive:
            if not info.isdir():
                yield _Member(info.name, info.size, info.isreg(), partial(_read_tarred, archive, info))


def _read_tarred(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(info)
    return file.read() if file is not None else b""


def _check(member: _Member) -> None:
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts or "\\" in member.name or ":" in member.name:
        raise ValueError(f"names in it must stay inside it; got {member.name!r}")
    if not member.regular:
        raise ValueError(f"{member.name} must be a regular file; it is a link or something else")
    if member.size > LARGEST_MEMBER:
        raise ValueError(f"{member.name} has {member.size} bytes, more than {LARGEST_MEMBER}")
