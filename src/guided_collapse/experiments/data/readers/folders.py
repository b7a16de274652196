"""Class folders of images."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.experiments.data.readers.pictures import SUFFIXES, Files, Pictures, fits_in_memory, usual_size
from guided_collapse.experiments.data.sampling.hold_out import hold_out
from guided_collapse.experiments.data.split import ImageData, Split

TEST_FOLDERS = ("test", "val", "validation")


class _Tree(NamedTuple):
    """Image files of a tree of class folders, with the names of their classes."""

    paths: list[Path]
    classes: list[str]


def load_folder(path: Path, *, image_size: int | None = None, test_fraction: float = 0.2) -> ImageData:
    """Images in color from `path/train/CLASS/...` and `path/test/CLASS/...` (or `val`), or from `path/CLASS/...` alone.

    Without a test folder a share of every class is held out, always the same images. A split that does not fit in memory when
    decoded is streamed: its images are decoded when they are needed, and an unreadable one is named then.

    Args:
        path: the folder.
        image_size: height and width of the images: each is scaled to cover it and cut to its center. None takes those of most
            training images, up to 256.
        test_fraction: share of the images that is held out if there is no test folder.

    Raises:
        ValueError: for a folder that is missing, has no images, one class only or classes in test alone; or an unreadable image.
    """
    if not path.is_dir():
        raise ValueError(f"data must be a folder with one folder of images for each class; there is no folder {path}.")
    train = _tree(path / "train")
    trees = [_tree(path / name) for name in TEST_FOLDERS if train.paths]
    test = next((tree for tree in trees if tree.paths), None)
    train = train if train.paths else _tree(path)
    class_names = _class_names(train, path)
    labels = _labels(train, class_names)
    if test is None:
        train, labels, test, test_labels = _held_out(train, labels, test_fraction, path)
    else:
        test_labels = _labels(test, class_names)
    height, width = (image_size, image_size) if image_size else usual_size(Files(train.paths))
    pictures = [Pictures(Files(tree.paths), (3, height, width)) for tree in (train, test)]
    splits = [
        Split(images.to_memory() if fits_in_memory(len(images), images.shape) else images, targets)
        for images, targets in zip(pictures, (labels, test_labels), strict=True)
    ]
    return ImageData(path.name, splits[0], splits[1], class_names, path)


def _tree(folder: Path) -> _Tree:
    """The images under each class folder, in the order of their names; hidden folders and files of other kinds are passed over."""
    if not folder.is_dir():
        return _Tree([], [])
    try:
        classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
        found = [(file, entry.name) for entry in classes for file in sorted(entry.rglob("*")) if file.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise ValueError(f"data must be a readable folder; reading {folder} failed: {error}") from error
    return _Tree([file for file, _ in found], [name for _, name in found])


def _class_names(train: _Tree, path: Path) -> tuple[str, ...]:
    names = tuple(sorted(set(train.classes)))
    if len(names) < 2:
        found = f"only {names[0]}" if names else f"no images ({', '.join(sorted(SUFFIXES))})"
        raise ValueError(f"data must be a folder with a folder of images for each of at least two classes; {path} has {found}.")
    return names


def _labels(tree: _Tree, class_names: tuple[str, ...]) -> Tensor:
    index = {name: position for position, name in enumerate(class_names)}
    if strangers := sorted(set(tree.classes) - index.keys()):
        raise ValueError(
            "every class of the test images must be among the training images; "
            f"got {', '.join(strangers)} besides {', '.join(class_names)}."
        )
    return torch.tensor([index[name] for name in tree.classes], dtype=torch.int64)


def _held_out(train: _Tree, labels: Tensor, fraction: float, path: Path) -> tuple[_Tree, Tensor, _Tree, Tensor]:
    if not 0 < fraction < 1:
        raise ValueError(f"test_fraction must be between 0 and 1; got {fraction}.")
    num_classes = len(set(train.classes))
    num_test = min(max(round(fraction * len(labels)), num_classes), len(labels) - num_classes)
    try:
        parts = hold_out(labels, num_test, seed=0)
    except ValueError as error:
        raise ValueError(f"{path} has no test folder, and holding images out failed: {error} Add images.") from error
    trees = [_Tree([train.paths[i] for i in part], [train.classes[i] for i in part]) for part in (parts.train, parts.test)]
    return trees[0], labels[parts.train], trees[1], labels[parts.test]
