"""Splits with a long tail: some classes much rarer than others."""

from typing import Literal

import numpy as np
import torch

from guided_collapse.data.split import Split

LongTail = Literal["exponential", "step"]


def long_tailed(split: Split, *, kind: LongTail, ratio: float, seed: int) -> Split:
    """A part of the samples in which the first class is `ratio` times as frequent as the last.

    With C classes, class c = 0 ... C-1 keeps floor(n s_c) samples, where s_c is ratio^(-c / (C-1)) for "exponential", and for
    "step" 1 in the first half of the classes and 1 / ratio in the second (to which the middle class belongs if C is odd). n is the
    largest number for which every class has enough samples: the size of a class if all are equal. Samples keep their order.

    Args:
        split: where the samples come from; every class 0 ... C-1 must have some.
        kind: the shape of the tail.
        ratio: most frequent to least frequent class, at least 1.
        seed: which samples of a class are kept.

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
    generator = np.random.default_rng(seed)
    labels = split.labels.numpy()
    chosen = [generator.permutation(np.flatnonzero(labels == label))[: kept[label]] for label in range(num_classes)]
    return split.take(torch.from_numpy(np.sort(np.concatenate(chosen))))
