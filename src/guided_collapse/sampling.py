"""Batch samplers whose batches depend on a seed and the epoch alone, and the stratified one."""

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

MANY_CLASSES = 2**20


class SeededBatchSampler(Sampler[list[int]], ABC):
    """Yields the batches of an epoch, each of at most `batch_size` samples, which depend on (seed, epoch) alone."""

    def __init__(self, num_samples: int, batch_size: int, *, seed: int) -> None:
        self.num_samples = checked_integer(num_samples, "num_samples", at_least=1)
        self.batch_size = checked_integer(batch_size, "batch_size", at_least=1)
        self.seed, self.epoch = checked_integer(seed, "seed"), 0

    def set_epoch(self, epoch: int) -> None:
        """Selects the order of the next iteration; the epoch is an integer, at least 0."""
        self.epoch = checked_integer(epoch, "epoch")

    @abstractmethod
    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """Yields the part of every batch that the process `rank` takes when `processes` share a batch."""

    @property
    def sampler(self) -> Self:
        """The sampler itself: trainers such as Lightning's call `set_epoch` on this attribute."""
        return self

    def __len__(self) -> int:
        """Returns the number of batches in an epoch, the same in every process."""
        return -(-self.num_samples // self.batch_size)


class StratifiedBatchSampler(SeededBatchSampler):
    """A batch sampler that yields every sample once per epoch and keeps every class within one sample of its share of a batch.

    A class with n of all N samples has the share n B/N of a global batch of B samples and gets floor or ceil of it, so
    |count - n B/N| < 1, for any number of processes. B is the size of that very batch.

    `batch_size` is the size of the global batch. The global batch is stratified first, then split so that the processes' counts of
    a class differ by at most one. An epoch has ceil(N / batch_size) batches of nearly equal size: sizes are multiples of
    `num_replicas` and differ by at most `num_replicas`, so no small batch is left at the end. If `num_replicas` does not divide N,
    one batch takes the remaining samples. Samples of a batch are in random order, so MixUp and others that mix neighbors mix
    classes. The order depends on (seed, epoch) alone.

    Pass it to `DataLoader(dataset, batch_sampler=sampler)` and call `set_epoch` before each epoch.

    Args:
        labels: class indices of all samples, one-dimensional.
        batch_size: the largest size of a global batch, a multiple of `num_replicas`.
        num_replicas: processes that share a batch; None takes torch.distributed's world size, or 1.
        rank: this process; None takes torch.distributed's rank, or 0.
        seed: seeds the order.

    Raises:
        TypeError: for labels, sizes, rank or seed that are not integers.
        ValueError: for labels or sizes that do not fit.

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
                "batch_size must be a multiple of num_replicas, as it is the size of the global batch; "
                f"got batch_size={self.batch_size}, num_replicas={self.num_replicas}."
            )
        if len(self.labels) // self.num_replicas < len(self):
            raise ValueError(
                f"every process needs a sample in every batch; got {len(self.labels)} samples for {len(self)} batches over "
                f"num_replicas={self.num_replicas}. Raise batch_size."
            )

    def __iter__(self) -> Iterator[list[int]]:
        # One more than the rank, because numpy ignores a zero at the end of a seed.
        generator = np.random.default_rng([self.seed, self.epoch, self.rank + 1])
        for part in self.parts(self.rank, self.num_replicas):
            yield generator.permutation(part).tolist()

    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """Yields the part of every batch that one process takes, sorted by class."""
        for batch in self._global_batches():
            # The batch is sorted by class, so dealing gives each process its part of every class.
            yield batch[rank::processes].tolist()

    @property
    def drop_last(self) -> bool:
        """False: no sample is dropped. Raises a ValueError with several processes.

        Libraries that shard batch samplers read this, as accelerate does in `prepare`. These batches are split between processes
        already and differ in size, so sharding them again would skip samples.
        """
        processes = max(self.num_replicas, world_size_and_rank()[0])
        if processes > 1:
            raise ValueError(
                "StratifiedBatchSampler splits its batches between processes itself, so nothing else may shard them; got a request "
                f"to do so, with {processes} processes. With accelerate, prepare only model and optimizer; in Lightning's Trainer, "
                "set use_distributed_sampler=False."
            )
        return False

    def _global_batches(self) -> list[Indices]:
        """Deals the samples to the batches class by class, like cards; each batch comes out sorted by class."""
        generator = np.random.default_rng([self.seed, self.epoch])
        shuffled = generator.permutation(len(self.labels))
        class_order = generator.permutation(int(self.labels.max()) + 1)
        narrow = np.uint16 if len(class_order) <= 2**16 else np.int64  # numpy sorts short integers by radix
        by_class = shuffled[np.argsort(class_order[self.labels[shuffled]].astype(narrow), kind="stable")]
        generator.random()  # not used; without it, the batches of the published results would change
        starts = np.flatnonzero(np.diff(self.labels[by_class], prepend=-1))
        counts = np.diff(starts, append=len(by_class))

        # Batch sizes are multiples of the number of processes, except for the one batch that takes the remainder.
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
    """Several batches of one size."""

    number: int
    size: int

    def bounds(self, counts: Indices) -> "_Bounds":
        """What all of them together may hold of each class: floor or ceil of the share n B/N in each."""
        total = counts.sum()
        return _Bounds(self.number * (counts * self.size // total), self.number * -(-counts * self.size // total))


class _Bounds(NamedTuple):
    """The least and the most that may be taken of each class, (num_classes,)."""

    least: Indices
    most: Indices


def _split_classes(
    counts: Indices, larger: _Batches, smaller: _Batches, uneven: _Batches, generator: np.random.Generator
) -> tuple[Indices, Indices]:
    """Returns how many samples of each class go to the uneven batch and to the larger batches; the rest go to the smaller ones.

    Integers within all bounds exist: this is a transportation problem with integer bounds, and the exact shares solve it. Where the
    bounds leave a choice, it is random.
    """
    of_larger, of_smaller, wanted = larger.bounds(counts), smaller.bounds(counts), larger.number * larger.size

    def possible(left: Indices) -> _Bounds:
        """What the larger batches may take if this many samples are left for them and the smaller ones."""
        return _Bounds(np.maximum(of_larger.least, left - of_smaller.most), np.minimum(of_larger.most, left - of_smaller.least))

    in_uneven = _split_off_uneven(counts, uneven, possible, wanted)
    least, most = possible(counts - in_uneven)
    chosen = generator.permutation(np.repeat(np.arange(len(counts)), most - least))[: wanted - int(least.sum())]
    return in_uneven, least + np.bincount(chosen, minlength=len(counts))


def _split_off_uneven(counts: Indices, uneven: _Batches, possible: Callable[[Indices], _Bounds], wanted: int) -> Indices:
    """Returns how many samples of each class go to the uneven batch so that the larger batches can still take `wanted` in all.

    One more sample in the uneven batch lowers the least, the most, both or neither of what its class can give to the larger ones,
    each by one. The sum of the least must come down to `wanted`; the sum of the most must not drop below it. So classes that lower
    only the least come first, those that lower only the most come last, and of those that lower both, only as many as needed come
    before those that lower neither. Classes arrive in random order, so none is favored.
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
    """Returns torch.distributed's world size and rank, or those of a single process."""
    return (dist.get_world_size(), dist.get_rank()) if dist.is_available() and dist.is_initialized() else (1, 0)


def _checked_labels(labels: Tensor | Sequence[int] | npt.NDArray[np.integer]) -> Indices:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"labels must be one-dimensional, with at least one sample; got shape {array.shape}.")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"labels must be integers; got {array.dtype}.")
    if array.min() < 0:
        raise ValueError(f"labels must not be negative; got {array.min()}.")
    if array.max() > MANY_CLASSES:
        # Numbers with large gaps, such as the identities of people, would need memory as if every number were a class.
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    return array.astype(np.int64)


def checked_integer(value: SupportsIndex, name: str, *, at_least: int = 0) -> int:
    """Returns the value as an int if it is an integer of any kind, numpy's and torch's included; else raises a TypeError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer; got {value!r}.") from None
    if number < at_least:
        raise ValueError(f"{name} must be at least {at_least}; got {number}.")
    return number
