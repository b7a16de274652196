"""What samplers of batches share, and the plain one."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self, SupportsIndex

import numpy as np
from torch.utils.data import Sampler


class SeededBatchSampler(Sampler[list[int]], ABC):
    """Gives the batches of an epoch, which depend on (seed, epoch) alone.

    Args:
        num_samples: samples in all.
        batch_size: samples in a batch, at most.
        seed: source of the order.

    Raises:
        ValueError: for sizes or a seed that are not whole numbers, or a negative seed.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int) -> None:
        self.num_samples, self.batch_size = whole_number(num_samples, "num_samples"), whole_number(batch_size, "batch_size")
        self.seed, self.epoch = source_number(seed, "seed"), 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration.

        Raises:
            ValueError: for an epoch that is not a whole number, or negative.
        """
        self.epoch = source_number(epoch, "epoch")

    @abstractmethod
    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """What one of several processes takes of every batch of the epoch, when each takes its part.

        Args:
            rank: the process, from 0.
            processes: how many share a batch.
        """

    @property
    def sampler(self) -> Self:
        """The sampler itself: trainers such as Lightning's look here for what has a `set_epoch`."""
        return self

    def __len__(self) -> int:
        """The number of batches of an epoch, the same in every process."""
        return -(-self.num_samples // self.batch_size)


class ShuffledBatchSampler(SeededBatchSampler):
    """Each epoch gives every sample once, in random order, in batches as even as they can be.

    Args:
        num_samples: samples in all, at least 1.
        batch_size: samples in a batch, at most.
        seed: source of the order.

    Raises:
        ValueError: for sizes that are not positive whole numbers, or a seed that is not a whole number, at least 0.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int = 0) -> None:
        if num_samples < 1 or batch_size < 1:
            raise ValueError(f"num_samples and batch_size must be at least 1; got {num_samples} and {batch_size}.")
        super().__init__(num_samples, batch_size, seed=seed)

    def __iter__(self) -> Iterator[list[int]]:
        return self.parts(0, 1)

    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """What one process takes of every batch: one sample of each round in which they are dealt out."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        for batch in np.array_split(order, len(self)):
            yield batch[rank::processes].tolist()


def whole_number(value: SupportsIndex, name: str) -> int:
    """The value as an int, if it is a whole number of any kind, numpy's and torch's among them.

    Raises:
        ValueError: for another value, with its name.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number; got {value!r}.") from None


def source_number(value: SupportsIndex, name: str) -> int:
    """The value as an int, if it is a whole number that numpy's generators take as a seed.

    Raises:
        ValueError: for another value, with its name.
    """
    number = whole_number(value, name)
    if number < 0:
        raise ValueError(f"{name} must not be negative; got {number}.")
    return number
