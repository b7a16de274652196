"""Data sets by name, and where they live."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.data.augmentation.resampling import resize
from guided_collapse.experiments.data.known import KNOWN, KnownData, known_data
from guided_collapse.experiments.data.readers.archives import load_archive
from guided_collapse.experiments.data.readers.folders import load_folder
from guided_collapse.experiments.data.readers.idx import has_idx, load_idx
from guided_collapse.experiments.data.readers.parquet import load_parquet
from guided_collapse.experiments.data.sampling.hold_out import hold_out
from guided_collapse.experiments.data.split import ImageData, Split
from guided_collapse.lazy import optional

VARIABLE = "GUIDED_COLLAPSE_DATA"
SYSTEM_FOLDER = Path("/usr/share/datasets")  # where Debian's package dataset-fashion-mnist puts its folder


class MissingData(RequestError):  # noqa: N818  # it is a state of the disk, named as such
    """A data set is not where it should be; the message has the command that gets it."""


def data_root() -> Path:
    """The folder with one folder for each data set: $GUIDED_COLLAPSE_DATA, or `guided-collapse` in the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "guided-collapse"


def data_folder(name: str, root: Path | None) -> Path:
    """The folder of one data set under `root`; None takes `data_root()`."""
    return (root if root is not None else data_root()) / name


def load_data(name: str, *, root: Path | None = None, image_size: int | None = None) -> ImageData:
    """The data set of this name, from the folder of its name under `root`.

    The folder may hold one of its archives, IDX files, class folders (in train and test), or parquet files from the hub; the first
    of these that is there is taken. What is read must be consistent, but may be smaller than the real thing: `load_checked`
    compares checksums, `download` counts too.

    Args:
        name: one of those that `known.py` declares.
        root: None takes `data_root()`.
        image_size: height and width to which images are resized; None keeps the usual ones, which for imagenet are 256.

    Raises:
        MissingData: if it is not there, with the command that gets it.
        ValueError: for an unknown name or damaged files.
    """
    known = known_data(name)
    data = _load(name, known, data_folder(name, root), image_size or known.image_size)
    return _resized(data, image_size or known.image_size)


def load_digits() -> ImageData:
    """Handwritten digits that come with scikit-learn: 1437 to train on and 360 to test on, stratified, always the same.

    Gray levels 0 ... 16 become 0 ... 255, rounded.

    Raises:
        MissingPackageError: if scikit-learn is not installed.
    """
    bundle = optional("sklearn.datasets", extra="experiments", package="scikit-learn").load_digits()
    levels = np.rint(bundle.images * (255 / 16)).astype(np.uint8)
    everything = Split(torch.from_numpy(levels)[:, None], torch.from_numpy(bundle.target.astype(np.int64)))
    known = KNOWN["digits"]
    parts = hold_out(everything.labels, known.num_test, seed=None)
    return ImageData("digits", everything.take(parts.train), everything.take(parts.test), known.class_names or ())


def _load(name: str, known: KnownData, folder: Path, size: int) -> ImageData:
    if name == "digits":
        return load_digits()
    for archive in known.archives:
        for place in (folder, folder.parent / archive.home):
            if (place / archive.name).is_file():
                return load_archive(place / archive.name, name=name, known=known, cache=folder / "decoded.npz")
    for place in (folder, SYSTEM_FOLDER / name):
        if has_idx(place):
            return load_idx(place, name=name, class_names=known.class_names or ())
    # Class folders first: looking for parquet files among a million images takes its time.
    if any(entry.is_dir() for entry in folder.glob("train/*")):
        return replace(load_folder(folder, image_size=size), name=name)
    if any(folder.rglob("*.parquet")):
        return load_parquet(folder, name=name, channels=known.channels, image_size=size, test_part=known.test_part)
    raise MissingData(f"{name} must be in {folder}; it is not. Run: guided-collapse data {name}")


def _resized(data: ImageData, size: int) -> ImageData:
    def of(split: Split) -> Split:
        if not isinstance(split.images, Tensor) or split.images.shape[2:] == (size, size):
            return split
        return Split(resize(split.images, size), split.labels)

    return replace(data, train=of(data.train), test=of(data.test))
