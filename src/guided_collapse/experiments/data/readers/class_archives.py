"""Tiny ImageNet and Omniglot as they are published."""

from importlib import resources
from pathlib import Path, PurePosixPath

import torch

from guided_collapse.experiments.data.known import KnownData
from guided_collapse.experiments.data.readers.archives import PARTS, Sample, decode_samples, is_picture, read_members
from guided_collapse.experiments.data.readers.decoded import Arrays
from guided_collapse.experiments.data.sampling.hold_out import hold_out

ANNOTATIONS = "val_annotations.txt"
HELD_OUT_DRAWINGS = 4  # of the 20 of each character


def read_tiny_imagenet(path: Path, known: KnownData) -> Arrays:
    """All classes of Tiny ImageNet: train/CLASS/images/FILE to train on, and for test the validation part, val/images/FILE.

    The class of a validation image is in val/val_annotations.txt: file, class and a box in each line. The published test part has
    no labels and is passed over.

    Raises:
        ValueError: for an archive that is damaged or incomplete.
    """
    contents = read_members(path, lambda name: is_picture(name) or PurePosixPath(name).name == ANNOTATIONS)
    annotations = next((text for name, text in contents.items() if PurePosixPath(name).name == ANNOTATIONS), None)
    if annotations is None:
        raise ValueError(f"{path} must hold {ANNOTATIONS}, with the classes of the validation images; it does not.")
    lines = [line.split("\t") for line in annotations.decode("utf-8", errors="replace").splitlines() if line.strip()]
    classes = {line[0]: line[1] for line in lines if len(line) > 1}
    samples = []
    for member in sorted(filter(is_picture, contents)):
        match PurePosixPath(member).parts[-4:]:
            case ("train", class_name, "images", _):
                samples.append(Sample("train", class_name, member))
            case (*_, "val", "images", file) if file in classes:
                samples.append(Sample("test", classes[file], member))
            case (*_, "val", "images", file):
                raise ValueError(f"every validation image must have a class in {ANNOTATIONS}; {file} in {path} has none.")
    return decode_samples(path, contents, samples, known)


def read_tiny_imagenet_100(path: Path, known: KnownData) -> Arrays:
    """The part of Tiny ImageNet that `listed_samples` names, wherever its files are in the archive.

    Raises:
        ValueError: for an archive that is damaged or lacks one of the files.
    """
    listed = listed_samples()
    files = {sample.member for sample in listed}
    contents = read_members(path, lambda name: PurePosixPath(name).name in files)
    contents = {PurePosixPath(member).name: content for member, content in contents.items()}
    if lacking := sorted(files - contents.keys()):
        raise ValueError(f"{path} must hold the {len(files)} files of the list; it lacks {len(lacking)}, such as {lacking[0]}.")
    return decode_samples(path, contents, listed, known)


def listed_samples() -> list[Sample]:
    """The files of tiny-imagenet-100, in order; all are files of the published training part.

    A line of the list has a class, the numbers of its training files and those of its test files, as in `n03255030 0-299 300-349`:
    n03255030_0.JPEG to n03255030_299.JPEG are to train on.
    """
    text = resources.files("guided_collapse.experiments.data").joinpath("tiny_imagenet_100.txt").read_text(encoding="ascii")
    listed = []
    for class_name, *numbers in (line.split() for line in text.splitlines()):
        for part, bounds in zip(PARTS, numbers, strict=True):
            first, last = map(int, bounds.split("-"))
            listed += [Sample(part, class_name, f"{class_name}_{number}.JPEG") for number in range(first, last + 1)]
    return listed


def read_omniglot(path: Path, known: KnownData) -> Arrays:
    """Characters of Omniglot, ALPHABET/CHARACTER/FILE; a class is a character of an alphabet.

    Of the 20 drawings of a character the third, eighth, thirteenth and eighteenth by name are held out for test: 4 at even
    distances, always the same. Names count the people who drew an alphabet, so the same four people are held out of all of it.

    Raises:
        ValueError: for an archive that is damaged, or characters with too few drawings.
    """
    contents = read_members(path, is_picture)
    members = sorted(member for member in contents if len(PurePosixPath(member).parts) >= 3)
    names = ["/".join(PurePosixPath(member).parts[-3:-1]) for member in members]
    index = {name: position for position, name in enumerate(sorted(set(names)))}
    try:
        held_out = hold_out(torch.tensor([index[name] for name in names]), HELD_OUT_DRAWINGS * len(index), seed=None)
    except ValueError as error:
        raise ValueError(f"{path} must hold drawings as ALPHABET/CHARACTER/FILE; dividing them failed: {error}") from error
    test = set(held_out.test.tolist())
    samples = [
        Sample("test" if position in test else "train", name, member)
        for position, (name, member) in enumerate(zip(names, members, strict=True))
    ]
    return decode_samples(path, contents, samples, known)
