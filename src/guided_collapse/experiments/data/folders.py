"""Loads images from folders, one folder per class.

The `imagefolder` of Hugging Face `datasets` is not used because it guesses splits from parts of names, copies all images into Arrow
files, and does not say which file is damaged.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from guided_collapse.experiments.data.pictures import SUFFIXES, Pictures, usual_size
from guided_collapse.experiments.data.split import ImageData, Split, hold_out_fraction

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}
"""The folder names, in lower case, that denote a split rather than a class."""


def load_folder(path: Path, *, image_size: int | None = None, test_fraction: float = 0.2) -> ImageData:
    """Loads color images from `path/train/CLASS/...` and `path/test/CLASS/...`, or from `path/CLASS/...` alone.

    Split folders may have any name in `SPLITS`, in upper or lower case. If the test folder has no class folders, the validation
    folder is the test split; if there is neither, a fraction of every class is held out, always the same images. Hidden files and
    folders are skipped, and links are followed. A split that does not fit in memory is streamed: its images are decoded only when
    they are needed, so an unreadable image is reported only then.

    Args:
        path: the folder.
        image_size: height and width to scale and center-crop the images to; if None, the most common size of the training
            images, at most 256.
        test_fraction: fraction of the images to hold out if there is neither a test nor a validation folder.
    """
    if not path.is_dir():
        raise ValueError(f"data must be a folder with one folder of images for each class; there is no folder {path}.")
    folders = find_splits(path)
    home = folders.get("train", path)
    train = _classes(home)
    if empty := [name for name, files in train.items() if not files]:
        endings = ", ".join(sorted(SUFFIXES))
        raise ValueError(f"every class folder must have images ({endings}); {home} has none in {', '.join(empty)}. Remove them.")
    if len(train) < 2:
        found = f"only {next(iter(train))}" if train else "none"
        raise ValueError(f"data must be a folder with a folder of images for each of at least two classes; {home} has {found}.")
    files, labels = _samples(train, train)
    tests = (_classes(folders[name]) for name in ("test", "validation") if name in folders)
    test = next((classes for classes in tests if any(classes.values())), None)
    if test is not None:
        test_files, test_labels = _samples(test, train)
    else:
        try:
            parts = hold_out_fraction(labels, test_fraction, seed=0)
        except ValueError as error:
            raise ValueError(f"{path} has no test folder, and holding images out failed: {error} Add images.") from error
        test_files, test_labels = [files[index] for index in parts.test], labels[parts.test]
        files, labels = [files[index] for index in parts.train], labels[parts.train]
    height, width = (image_size, image_size) if image_size else usual_size(files)
    splits = []
    for paths, targets in ((files, labels), (test_files, test_labels)):
        pictures = Pictures(paths, (3, height, width), names=paths)
        splits.append(Split(pictures.to_memory() if pictures.fit_in_memory else pictures, targets))
    return ImageData(path.name, splits[0], splits[1], tuple(train), path)


def find_splits(path: Path) -> dict[str, Path]:
    """Returns the folders of the training, test and validation splits, by name; empty if `path` holds class folders instead.

    Raises:
        ValueError: if `path` holds split and class folders, several folders for one split, or no training folder among the splits.
    """
    folders = _subfolders(path)
    named = [folder for folder in folders if folder.name.lower() in SPLITS]
    splits = {SPLITS[folder.name.lower()]: folder for folder in named}
    others = [folder for folder in folders if named and folder not in named and _files(folder)]
    if named and ("train" not in splits or len(splits) < len(named) or others):
        raise ValueError(
            f"data must be class folders, or class folders in one train and at most one test and one validation folder; {path} has "
            f"{', '.join(folder.name for folder in (*named, *others))}. If some of these are classes, move all classes into "
            f"{path / 'train'}."
        )
    return splits


def _classes(folder: Path) -> dict[str, list[str]]:
    """Returns the sorted paths of the images of each class, by class name."""
    return {entry.name: _files(entry) for entry in _subfolders(folder)}


def _subfolders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[str]:
    """Returns the sorted paths of the images in the folder, at any depth."""
    files: list[Path] = []
    seen: set[str] = set()  # links may form a loop
    for root, folders, names in os.walk(folder, followlinks=True, onerror=_refuse):
        seen.add(os.path.realpath(root))
        folders[:] = [name for name in sorted(folders) if name[0] != "." and os.path.realpath(Path(root, name)) not in seen]
        files += [Path(root, name) for name in names if name[0] != "." and Path(name).suffix.lower() in SUFFIXES]
    return [str(file) for file in sorted(files)]


def _refuse(error: OSError) -> NoReturn:
    raise error


def _samples(classes: dict[str, list[str]], known: Iterable[str]) -> tuple[list[str], Tensor]:
    """Returns the paths of all images, and their labels: the positions of their classes in `known`."""
    index = {name: position for position, name in enumerate(known)}
    if unknown := [name for name, files in classes.items() if files and name not in index]:
        raise ValueError(
            "every class of the test images must be among the training images; "
            f"got {', '.join(unknown)}, not among {', '.join(index)}."
        )
    labels = [index[name] for name, files in classes.items() for _ in files]
    return [file for files in classes.values() for file in files], torch.tensor(labels, dtype=torch.int64)
