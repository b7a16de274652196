"""A test share of every class."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class HeldOut(NamedTuple):
    """Indices of the samples of two disjoint parts, int64, both in ascending order."""

    train: Tensor
    test: Tensor


def hold_out(labels: Tensor, num_test: int, *, seed: int | None) -> HeldOut:
    """Divides samples so that every class has its share in both parts, within one sample, and at least one in each.

    Args:
        labels: int64 (num_samples,).
        num_test: samples of the test part.
        seed: which samples are held out; None takes them at even distances, which no generator can change.

    Raises:
        ValueError: if a class has fewer than two samples, or `num_test` does not leave one of each class in both parts.
    """
    array = labels.numpy()
    classes, counts = np.unique(array, return_counts=True)
    if counts.min() < 2 or not len(classes) <= num_test <= len(array) - len(classes):
        raise ValueError(
            "both parts need a sample of every class; "
            f"got {len(array)} samples of {len(classes)} classes, the rarest with {counts.min()}, and {num_test} to hold out."
        )
    generator = None if seed is None else np.random.default_rng(seed)
    test = []
    for label, count, share in zip(classes, counts, _shares(counts, num_test), strict=True):
        members = np.flatnonzero(array == label)
        if generator is not None:
            members = generator.permutation(members)
        test.append(members[(2 * np.arange(share) + 1) * count // (2 * share)])
    held = np.zeros(len(array), dtype=bool)
    held[np.concatenate(test)] = True
    return HeldOut(torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held)))


def _shares(counts: npt.NDArray[np.int64], num_test: int) -> list[int]:
    """Whole numbers nearest to the proportional shares, each in 1 ... count - 1, that add up to `num_test`."""
    exact = counts * num_test / counts.sum()
    shares = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (missing := num_test - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        allowed = (shares < counts - 1) if step > 0 else (shares > 1)
        shares[np.argmax(np.where(allowed, step * (exact - shares), -np.inf))] += step
    return [int(share) for share in shares]
