"""Batch samplers, including a stratified one, whose order depends only on the seed and the epoch."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

Indices = npt.NDArray[np.int64]

LARGEST_LABEL = 2**20
"""Labels up to this value serve as array indices without change. If any label is larger, all labels are renumbered."""


class SeededBatchSampler(Sampler[list[int]], ABC):
    """Base class of samplers whose batches, of at most `batch_size` samples each, depend only on (seed, epoch)."""

    def __init__(self, num_samples: int, batch_size: int, *, seed: int) -> None:
        self.num_samples = checked_integer(num_samples, "num_samples", at_least=1)
        self.batch_size = checked_integer(batch_size, "batch_size", at_least=1)
        self.seed, self.epoch = checked_integer(seed, "seed"), 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, a nonnegative integer, which determines the order of the next iteration."""
        self.epoch = checked_integer(epoch, "epoch")

    @abstractmethod
    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """Yields the part of each batch that goes to process `rank` out of `processes`."""

    @property
    def sampler(self) -> Self:
        """The sampler itself: trainers such as Lightning's look for `set_epoch` on this attribute."""
        return self

    def __len__(self) -> int:
        """Returns the number of batches in an epoch, the same in every process."""
        return -(-self.num_samples // self.batch_size)


class StratifiedBatchSampler(SeededBatchSampler):
    r"""Yields stratified batches: every batch has every class in proportion to its size, and an epoch has every sample once.

    Pass it as `DataLoader(dataset, batch_sampler=sampler)` and call `sampler.set_epoch(epoch)` before each epoch. The order depends
    only on (seed, epoch).

    If a class has $n$ of the $N$ samples, a global batch of $B$ samples contains $\lfloor nB/N \rfloor$ or $\lceil nB/N \rceil$ of
    them, regardless of the number of processes. Samples within a batch are shuffled, so that MixUp and CutMix, which mix
    neighbors, mix classes.

    An epoch has `ceil(N / batch_size)` batches of nearly equal size, so it does not end in a small batch: sizes are multiples of
    `num_replicas` and differ by at most `num_replicas`, except that one batch takes the remainder if `num_replicas` does not
    divide N. The sampler itself splits each global batch between processes, so that the numbers of samples of a class in any
    two processes differ by at most one.

    Args:
        labels: class indices of all samples, (num_samples,).
        batch_size: maximum size of a global batch, over all processes; a multiple of `num_replicas`.
        num_replicas: number of processes; if None, the world size of `torch.distributed`, or 1.
        rank: index of this process; if None, the rank in `torch.distributed`, or 0.
        seed: random seed.

    Raises:
        TypeError: if labels, sizes, rank or seed are not integers.
        ValueError: if labels are negative, empty or not one-dimensional, or if the sizes are incompatible.

    Example:
        >>> from guided_collapse import StratifiedBatchSampler
        >>> labels = [0, 0, 0, 0, 1, 1]
        >>> sampler = StratifiedBatchSampler(labels, batch_size=3)
        >>> [sorted(labels[index] for index in batch) for batch in sampler]
        [[0, 0, 1], [0, 0, 1]]
    """

    def __init__(
        self,
        labels: Tensor | Sequence[int] | npt.NDArray[np.integer],
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
    ) -> None:
        world_size, own_rank = world_size_and_rank()
        self.num_replicas = checked_integer(world_size if num_replicas is None else num_replicas, "num_replicas", at_least=1)
        self.rank = checked_integer(own_rank if rank is None else rank, "rank")
        self.labels = _checked_labels(labels)
        super().__init__(len(self.labels), batch_size, seed=seed)
        if self.rank >= self.num_replicas:
            raise ValueError(f"rank must be below num_replicas; got rank={self.rank}, num_replicas={self.num_replicas}.")
        if self.batch_size % self.num_replicas:
            raise ValueError(
                "batch_size is the size of the global batch and must be a multiple of num_replicas; "
                f"got batch_size={self.batch_size}, num_replicas={self.num_replicas}."
            )
        if len(self.labels) // self.num_replicas < len(self):
            raise ValueError(
                f"every process needs a sample in every batch; got {len(self.labels)} samples for {len(self)} batches over "
                f"num_replicas={self.num_replicas}. Raise batch_size."
            )

    def __iter__(self) -> Iterator[list[int]]:
        # rank + 1, because numpy ignores a trailing zero in a seed.
        generator = np.random.default_rng([self.seed, self.epoch, self.rank + 1])
        for part in self.parts(self.rank, self.num_replicas):
            yield generator.permutation(part).tolist()

    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """Yields the part of each batch that goes to process `rank`, sorted by class."""
        for batch in self._global_batches():
            # The batch is sorted by class, so a strided slice contains a proportional share of every class.
            yield batch[rank::processes].tolist()

    @property
    def drop_last(self) -> bool:
        """False: no sample is dropped. With several processes, reading this attribute raises a ValueError.

        Libraries that shard batch samplers, such as accelerate in `prepare`, read this attribute. These batches are already split
        between processes and differ in size, so sharding them again would skip samples.
        """
        processes = max(self.num_replicas, world_size_and_rank()[0])
        if processes > 1:
            raise ValueError(
                "StratifiedBatchSampler splits its batches between processes itself and must not be sharded again; got a request "
                f"to shard it over {processes} processes. With accelerate, prepare only model and optimizer; in Lightning's "
                "Trainer, set use_distributed_sampler=False."
            )
        return False

    def _global_batches(self) -> list[Indices]:
        """Returns the batches of the epoch, each sorted by class. Class by class, samples are dealt to the batches like cards."""
        generator = np.random.default_rng([self.seed, self.epoch])
        shuffled = generator.permutation(len(self.labels))
        class_order = generator.permutation(int(self.labels.max()) + 1)
        narrow = np.uint16 if len(class_order) <= 2**16 else np.int64  # numpy uses radix sort for short integers
        by_class = shuffled[np.argsort(class_order[self.labels[shuffled]].astype(narrow), kind="stable")]
        generator.random()  # unused, but published results depend on this draw
        starts = np.flatnonzero(np.diff(self.labels[by_class], prepend=-1))
        counts = np.diff(starts, append=len(by_class))

        # All batch sizes are multiples of num_replicas, except the size of the one batch that takes the remainder.
        rows, left_over = divmod(len(self.labels), self.num_replicas)
        rows_each, num_larger = divmod(rows, len(self))
        larger = _Batches(num_larger, (rows_each + 1) * self.num_replicas)
        uneven = _Batches(min(left_over, 1), rows_each * self.num_replicas + left_over)
        smaller = _Batches(len(self) - num_larger - uneven.number, rows_each * self.num_replicas)

        in_uneven, in_larger = _split_classes(counts, larger, smaller, uneven, generator)
        place = np.arange(len(by_class)) - np.repeat(starts, counts)
        end_uneven, end_larger = np.repeat(in_uneven, counts), np.repeat(in_uneven + in_larger, counts)
        groups = (
            (by_class[(end_uneven <= place) & (place < end_larger)], larger.number),
            (by_class[end_larger <= place], smaller.number),
            (by_class[place < end_uneven], uneven.number),
        )
        batches = [samples[index::number] for samples, number in groups for index in range(number)]
        batches[-1] = batches[-1][np.argsort(self.labels[batches[-1]], kind="stable")]  # as in the published results
        return [batches[index] for index in generator.permutation(len(batches))]


class _Batches(NamedTuple):
    """A group of batches of the same size."""

    number: int
    size: int

    def bounds(self, counts: Indices) -> "_Bounds":
        """Returns bounds on the total number of samples of each class in these batches.

        If a class has n of the N samples, each batch of B samples contains floor(n B/N) or ceil(n B/N) of them.
        """
        total = counts.sum()
        return _Bounds(self.number * (counts * self.size // total), self.number * -(-counts * self.size // total))


class _Bounds(NamedTuple):
    """Minimum and maximum number of samples of each class, (num_classes,)."""

    least: Indices
    most: Indices


def _split_classes(
    counts: Indices, larger: _Batches, smaller: _Batches, uneven: _Batches, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Returns how many samples of each class go to the uneven batch and to the larger batches; the rest go to the smaller batches.

    This is a transportation problem with integer bounds. The exact shares solve it, so an integer solution exists, too. If several
    solutions exist, the choice is random.
    """
    of_larger, of_smaller, wanted = larger.bounds(counts), smaller.bounds(counts), larger.number * larger.size

    def possible(left: Indices) -> _Bounds:
        """Returns bounds on what the larger batches may take when they share the `left` samples with the smaller batches."""
        return _Bounds(np.maximum(of_larger.least, left - of_smaller.most), np.minimum(of_larger.most, left - of_smaller.least))

    in_uneven = _split_off_uneven(counts, uneven, possible, wanted)
    least, most = possible(counts - in_uneven)
    chosen = generator.permutation(np.repeat(np.arange(len(counts)), most - least))[: wanted - int(least.sum())]
    return in_uneven, least + np.bincount(chosen, minlength=len(counts))


def _split_off_uneven(counts: Indices, uneven: _Batches, possible: Callable[[Indices], _Bounds], wanted: int) -> Indices:
    """Returns how many samples of each class go to the uneven batch so that the larger batches can still take `wanted` in total.

    Each class gives the uneven batch the floor of its share, and some give one more sample. Giving one more lowers the minimum
    that the class can give to the larger batches by one, or the maximum, or both, or neither. The sum of the minima must drop to
    `wanted` or below, and the sum of the maxima must not drop below `wanted`. So classes that lower only the minimum come first,
    and classes that lower only the maximum come last. In between come as many classes as needed that lower both, then classes that
    lower neither, then the remaining classes that lower both. Class numbers are shuffled beforehand, so this order favors no class.
    """
    share, most = uneven.bounds(counts)
    before, after = possible(counts - share), possible(counts - most)
    lowers_least, lowers_most, rounded = before.least > after.least, before.most > after.most, most > share

    def classes(least: bool, most: bool) -> Indices:
        return np.flatnonzero(rounded & (lowers_least == least) & (lowers_most == most))

    first, both = classes(True, False), classes(True, True)
    needed = max(int(before.least.sum()) - wanted - len(first), 0)
    in_turn = np.concatenate([first, both[:needed], classes(False, False), both[needed:], classes(False, True)])
    share[in_turn[: uneven.number * uneven.size - int(share.sum())]] += 1
    return share


def world_size_and_rank() -> tuple[int, int]:
    """Returns the world size and rank in `torch.distributed`, or (1, 0) without it."""
    return (dist.get_world_size(), dist.get_rank()) if dist.is_available() and dist.is_initialized() else (1, 0)


def _checked_labels(labels: Tensor | Sequence[int] | npt.NDArray[np.integer]) -> Indices:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"labels must be one-dimensional, with at least one sample; got shape {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"labels must be integers; got {array.dtype}.")
    if array.min() < 0:
        raise ValueError(f"labels must not be negative; got {array.min()}.")
    if array.max() > LARGEST_LABEL:
        # Otherwise, labels with large gaps, such as IDs of people, would take memory for every number in between.
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    return array.astype(np.int64)


def checked_integer(value: SupportsIndex, name: str, *, at_least: int = 0) -> int:
    """Returns the value, a Python, numpy or torch integer of at least `at_least`, as an int; raises an error for other values."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}.") from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}; got {number}.")
    return number
