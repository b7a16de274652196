"""IDX files, the format of MNIST and Fashion-MNIST."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.experiments.data.split import ImageData, Split

IMAGE_MAGIC = 0x00000803  # unsigned bytes in three dimensions
LABEL_MAGIC = 0x00000801  # unsigned bytes in one
LARGEST_CONTENTS = 2**29  # bytes; no file of the real data sets has a tenth of it
PARTS = {"train": "train", "test": "t10k"}


def find_idx_file(folder: Path, stem: str) -> Path | None:
    """The file of this name in the folder, plain or compressed; None if there is neither."""
    return next((path for path in (folder / stem, folder / f"{stem}.gz") if path.is_file()), None)


def has_idx(folder: Path) -> bool:
    """Whether the folder holds any of the four files."""
    return any(find_idx_file(folder, stem) for part in PARTS for stem in _stems(part))


def load_idx(folder: Path, *, name: str, class_names: tuple[str, ...]) -> ImageData:
    """A data set in four IDX files, such as train-images-idx3-ubyte or train-images-idx3-ubyte.gz.

    Raises:
        ValueError: for a file that is missing, damaged or of another kind, or counts that do not agree.
    """
    splits = {}
    for part in PARTS:
        images, labels = (_read(folder, stem, magic) for stem, magic in zip(_stems(part), (IMAGE_MAGIC, LABEL_MAGIC), strict=True))
        if len(images) != len(labels):
            raise ValueError(f"{folder} must hold one label for each image; it has {len(images)} and {len(labels)} in {part}.")
        splits[part] = Split(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64)))
    return ImageData(name, splits["train"], splits["test"], class_names, folder)


def read_idx(path: Path, magic: int) -> npt.NDArray[np.uint8]:
    """The array of an IDX file of unsigned bytes: magic number, one size for each dimension (all big-endian), then the bytes.

    Args:
        path: the file; a name in .gz is decompressed.
        magic: the magic number that it must have.

    Raises:
        ValueError: for a file that is damaged or of another kind.
    """
    contents = read_possibly_compressed(path)
    found = int.from_bytes(contents[:4], "big")
    if len(contents) < 4 or found != magic:
        raise ValueError(f"{path} must be an IDX file with magic number {magic:#010x}; got {found:#010x}.")
    end = 4 + 4 * (magic & 0xFF)
    shape = [int.from_bytes(contents[start : start + 4], "big") for start in range(4, end, 4)]
    expected = end + int(np.prod(shape, dtype=object))
    if len(contents) != expected:
        raise ValueError(f"{path} must have {expected} bytes for its sizes {shape}; it has {len(contents)}. Get it again.")
    return np.frombuffer(contents, dtype=np.uint8, offset=end).reshape(shape).copy()


def read_possibly_compressed(path: Path) -> bytes:
    """The contents of a file, decompressed if its name ends in .gz.

    Raises:
        ValueError: for a file that cannot be read or decompressed, or holds more than LARGEST_CONTENTS.
    """
    contents = bytearray()
    with possibly_compressed(path) as file:
        while chunk := file.read(2**20):  # a small file may hold no end of zeros, so it is not decompressed at one go
            contents += chunk
            if len(contents) > LARGEST_CONTENTS:
                raise ValueError(f"it holds more than {LARGEST_CONTENTS:,} bytes.")
    return bytes(contents)


@contextmanager
def possibly_compressed(path: Path) -> Iterator[BufferedIOBase]:
    """The file, open to read its contents, which are decompressed if its name ends in .gz.

    Raises:
        ValueError: for a file that cannot be read or decompressed, here or in the block, with its name.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} must be readable; reading it failed: {error}") from error


def _stems(part: str) -> tuple[str, str]:
    return f"{PARTS[part]}-images-idx3-ubyte", f"{PARTS[part]}-labels-idx1-ubyte"


def _read(folder: Path, stem: str, magic: int) -> npt.NDArray[np.uint8]:
    path = find_idx_file(folder, stem)
    if path is None:
        raise ValueError(f"{folder} must hold {stem} or {stem}.gz beside the others; it does not.")
    return read_idx(path, magic)
