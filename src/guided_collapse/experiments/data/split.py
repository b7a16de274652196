"""Labeled images (in memory or streamed) or features, and subsets of them: held-out sets, few samples per class, long tails."""

from collections.abc import Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

LongTail = Literal["exponential", "step"]


@dataclass(frozen=True, eq=False)
class Split(Dataset[tuple[Tensor, Tensor]]):
    """Labeled samples.

    Attributes:
        images: if in memory, uint8 (num_samples, channels, height, width); if streamed, a map-style dataset whose item i is the
            image of sample i, uint8 (channels, height, width), all of the same size; or features, float32 (num_samples, width).
        labels: int64 (num_samples,), class indices, on the CPU.
    """

    images: Tensor | Dataset[Tensor]
    labels: Tensor

    def __post_init__(self) -> None:
        num_images = len(cast(Sized, self.images))
        if num_images != len(self.labels) or num_images == 0:
            raise ValueError(f"there must be samples, each with a label; got {num_images} samples and {len(self.labels)} labels.")
        if int(self.labels.min()) < 0:
            raise ValueError(f"labels must not be negative; got {int(self.labels.min())}.")

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        channels, height, width = self.images[0].shape
        return channels, height, width

    def take(self, indices: Tensor) -> "Split":
        """Returns the samples with these indices, int64 (num_taken,), in that order."""
        if isinstance(self.images, Tensor):
            return Split(self.images[indices.to(self.images.device)], self.labels[indices])
        return Split(Subset(self.images, indices.tolist()), self.labels[indices])


@dataclass(frozen=True, eq=False)
class ImageData:
    """A training and a test split with the same image shape, and the name of each class.

    `location` is the file or folder that the samples were read from, or None if they came with a package.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    location: Path | None = None

    def __post_init__(self) -> None:
        highest = max(int(split.labels.max()) for split in (self.train, self.test))
        if highest >= self.num_classes:
            raise ValueError(f"labels of {self.name} must be less than its number of classes, {self.num_classes}; got {highest}.")

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return self.train.image_shape


def in_color(data: ImageData) -> ImageData:
    """Returns the same images with three channels."""

    def colored(split: Split) -> Split:
        if isinstance(split.images, Tensor):
            return Split(split.images.expand(-1, 3, -1, -1), split.labels)
        return split

    return replace(data, train=colored(data.train), test=colored(data.test))


class HeldOut(NamedTuple):
    """Sample indices of two disjoint parts, int64, each in ascending order."""

    train: Tensor
    test: Tensor


def hold_out(labels: Tensor, num_test: int, *, seed: int | None) -> HeldOut:
    """Divides samples into a training part and a test part of `num_test` samples, class by class.

    Each class has its proportional share in both parts, up to rounding, and at least one sample in each. `seed` selects the samples
    of the test part; if None, they are evenly spaced within each class. Raises ValueError if a part would lack a class.
    """
    array = labels.numpy()
    classes, counts = np.unique(array, return_counts=True)
    rarest = counts.min(initial=len(array))
    if rarest < 2 or not len(classes) <= num_test <= len(array) - len(classes):
        raise ValueError(
            "both parts need a sample of every class; "
            f"got {len(array)} samples of {len(classes)} classes, the rarest with {rarest}, and {num_test} to hold out."
        )
    # Integers nearest to the proportional shares, each in 1 ... count - 1, that add up to num_test.
    exact = counts * num_test / counts.sum()
    shares = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (missing := num_test - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        allowed = (shares < counts - 1) if step > 0 else (shares > 1)
        shares[np.argmax(np.where(allowed, step * (exact - shares), -np.inf))] += step
    generator = None if seed is None else np.random.default_rng(seed)
    held = np.zeros(len(array), dtype=bool)
    for label, count, share in zip(classes, counts, shares, strict=True):
        members = np.flatnonzero(array == label)
        if generator is not None:
            members = generator.permutation(members)
        held[members[(2 * np.arange(share) + 1) * count // (2 * share)]] = True
    return HeldOut(torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held)))


def hold_out_fraction(labels: Tensor, fraction: float, *, seed: int | None) -> HeldOut:
    """Holds out this fraction of the samples, adjusted if needed so that both parts have room for every class; see `hold_out`."""
    num_samples, num_classes = len(labels), len(np.unique(labels.numpy()))
    return hold_out(labels, min(max(round(fraction * num_samples), num_classes), num_samples - num_classes), seed=seed)


def few_of_each(split: Split, number: int) -> Split:
    """Returns `number` samples of each class, always the same ones, in their original order.

    The samples for a smaller number are a subset of the samples for a larger number.
    """
    counts = split.labels.bincount().numpy()
    if counts.min() < number:
        raise ValueError(f"every class must have at least the {number} samples requested; got {counts.min()}. Request fewer.")
    return _thinned(split, np.full(len(counts), number))


def long_tailed(split: Split, *, kind: LongTail, ratio: float) -> Split:
    """Returns a subset of the samples in which the first class is `ratio` times as frequent as the last.

    The subset is always the same, and its samples are in their original order.

    With C classes, class c = 0 ... C-1 keeps floor(n s_c) samples, where s_c is ratio^(-c / (C-1)) for "exponential". For
    "step", s_c is 1 in the first half of the classes and 1 / ratio in the second, which includes the middle class if C is odd. The
    number n is the largest for which every class has enough samples: the size of a class if all are equal. Raises ValueError if a
    class would be left without samples.
    """
    counts = split.labels.bincount().numpy()
    num_classes, position = len(counts), np.arange(len(counts))
    if kind == "exponential":
        fraction = float(ratio) ** (-position / (num_classes - 1))
    else:
        fraction = np.where(position < num_classes // 2, 1.0, 1 / ratio)
    # The powers are rounded: without the small term, 5000 / 100 could come out as 49.
    kept = np.floor(fraction * (counts / fraction).min() + 1e-6).astype(np.int64)
    if kept.min() == 0:
        raise ValueError(
            f"ratio must leave every class a sample; got {ratio} for classes of {counts.min()} to {counts.max()} samples."
        )
    return _thinned(split, kept)


def _thinned(split: Split, numbers: npt.NDArray[np.int64]) -> Split:
    """Returns numbers[c] samples of each class c. The seed is fixed, so that all runs get the same subset."""
    generator = np.random.default_rng(0)
    labels = split.labels.numpy()
    chosen = [generator.permutation(np.flatnonzero(labels == label))[:number] for label, number in enumerate(numbers)]
    return split.take(torch.from_numpy(np.sort(np.concatenate(chosen))))
