"""Parts of a split: a few samples of each class, or a long tail with some classes much rarer than others."""

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.experiments.data.split import Split

LongTail = Literal["exponential", "step"]


def few_of_each(split: Split, number: int) -> Split:
    """A part of the samples with so many of each class, always the same, in their order; a smaller part is one of a larger.

    Raises:
        ValueError: if a class has fewer.
    """
    counts = split.labels.bincount().numpy()
    if number < 1 or counts.min() < number:
        raise ValueError(f"every class must have as many samples as are asked for; got {counts.min()} and {number}. Ask for fewer.")
    return _kept(split, np.full(len(counts), number))


def long_tailed(split: Split, *, kind: LongTail, ratio: float) -> Split:
    """A part of the samples in which the first class is `ratio` times as frequent as the last.

    With C classes, class c = 0 ... C-1 keeps floor(n s_c) samples, where s_c is ratio^(-c / (C-1)) for "exponential", and for
    "step" 1 in the first half of the classes and 1 / ratio in the second (to which the middle class belongs if C is odd). n is the
    largest number for which every class has enough samples: the size of a class if all are equal. Samples keep their order, and are
    always the same.

    Args:
        split: where the samples come from; every class 0 ... C-1 must have some.
        kind: the shape of the tail.
        ratio: most frequent to least frequent class, at least 1.

    Raises:
        ValueError: for another kind, a ratio below 1 or so large that a class is left without samples, or an absent class.
    """
    counts = split.labels.bincount().numpy()
    num_classes = len(counts)
    if counts.min() == 0 or num_classes < 2:
        raise ValueError(f"a long tail needs samples of every one of at least two classes; got {counts.tolist()} samples.")
    if not 1 <= ratio < float("inf"):
        raise ValueError(f"ratio is that of the most to the least frequent class, at least 1; got {ratio}.")
    position = np.arange(num_classes)
    if kind == "exponential":
        share = float(ratio) ** (-position / (num_classes - 1))
    elif kind == "step":
        share = np.where(position < num_classes // 2, 1.0, 1 / ratio)
    else:
        raise ValueError(f"kind must be exponential or step; got {kind!r}.")
    # The powers are rounded: without the small term 5000 / 100 could come out as 49.
    kept = np.floor(share * (counts / share).min() + 1e-6).astype(np.int64)
    if kept.min() == 0:
        raise ValueError(
            f"ratio must leave every class a sample; got {ratio} for classes of {counts.min()} to {counts.max()} samples."
        )
    return _kept(split, kept)


def _kept(split: Split, numbers: npt.NDArray[np.int64]) -> Split:
    """So many samples of each class, (num_classes,). The seed is the data's: every run has the same part, whatever its own seed."""
    generator = np.random.default_rng(0)
    labels = split.labels.numpy()
    chosen = [generator.permutation(np.flatnonzero(labels == label))[:number] for label, number in enumerate(numbers)]
    return split.take(torch.from_numpy(np.sort(np.concatenate(chosen))))
