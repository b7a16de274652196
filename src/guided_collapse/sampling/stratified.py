"""Batches in which every class has its share."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch import Tensor

from guided_collapse.sampling.batch_sampler import SeededBatchSampler, whole_number

Indices = npt.NDArray[np.int64]

MANY_CLASSES = 2**20


class StratifiedBatchSampler(SeededBatchSampler):
    """A batch sampler: each epoch gives every sample once, in batches in which every class has its share within one sample.

    The share of a class with n of all N samples in a batch of B is n B/N, and the class has floor or ceil of it there.

    `batch_size` is that of the global batch, whatever the number of processes: the global batch is stratified, then divided so that
    each process gets its part of every class. Batches of an epoch are as even as they can be: ceil(num_samples / batch_size) of
    them, whose sizes differ by no more than `num_replicas`, so no small batch remains at the end. Within a batch samples are in
    random order, so that what mixes neighbors, as MixUp does, mixes classes. The order depends on (seed, epoch) alone. Use it as
    `DataLoader(dataset, batch_sampler=sampler)` and call `set_epoch` before each epoch.

    If `num_replicas` does not divide the number of samples, the few that are left over ride along in one batch.

    Args:
        labels: class index of every sample, one-dimensional, integers.
        batch_size: samples in a global batch, at most; a multiple of `num_replicas`.
        num_replicas: processes that share a batch; None takes torch.distributed's world size, or 1.
        rank: this process; None takes torch.distributed's rank, or 0.
        seed: source of the order.

    Raises:
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
        distributed = dist.is_available() and dist.is_initialized()
        num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if distributed else 1
        rank = rank if rank is not None else dist.get_rank() if distributed else 0
        self.num_replicas, self.rank = whole_number(num_replicas, "num_replicas"), whole_number(rank, "rank")
        self.labels = _checked_labels(labels)
        super().__init__(len(self.labels), batch_size, seed=seed)
        self._check()

    def __iter__(self) -> Iterator[list[int]]:
        # One more than the rank, because numpy takes a zero at the end of a seed for none.
        generator = np.random.default_rng([self.seed, self.epoch, self.rank + 1])
        for part in self.parts(self.rank, self.num_replicas):
            yield generator.permutation(part).tolist()

    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """What one process takes of every batch: its part of every class, ordered by class, as recorded runs have it."""
        for batch in self._global_batches():
            # The batch is ordered by class here, so that dealing gives each process its part of every class.
            yield batch[rank::processes].tolist()

    @property
    def drop_last(self) -> bool:
        """False: every sample comes once an epoch.

        What divides the batches of a sampler among processes asks for this, as accelerate does in `prepare`. These are divided
        already, and their sizes differ, so dividing them again would leave samples or whole processes out.

        Raises:
            ValueError: where there are several processes.
        """
        distributed = dist.is_available() and dist.is_initialized()
        processes = max(self.num_replicas, dist.get_world_size() if distributed else 1)
        if processes > 1:
            raise ValueError(
                "the batches of StratifiedBatchSampler must not be divided among processes by anything else, because it divides "
                f"them itself; got a request to do so, with {processes} processes. Leave its loader as it is: with accelerate "
                "prepare model and optimizer alone, in Lightning's Trainer set use_distributed_sampler=False."
            )
        return False

    def _global_batches(self) -> list[Indices]:
        """The batches of the epoch, each ordered by class: samples are dealt out to the batches class by class, like cards."""
        generator = np.random.default_rng([self.seed, self.epoch])
        by_class = self._shuffled_by_class(generator)
        generator.random()  # an earlier version needed this number: without it the order of recorded runs would change
        sizes = self._sizes()
        starts = np.flatnonzero(np.diff(self.labels[by_class], prepend=-1))
        counts = np.diff(starts, append=len(by_class))
        in_uneven, in_larger = _shares(counts, sizes, generator)
        place = np.arange(len(by_class)) - np.repeat(starts, counts)
        uneven, larger = (np.repeat(bound, counts) for bound in (in_uneven, in_uneven + in_larger))
        batches = [
            *_deal(by_class[(uneven <= place) & (place < larger)], sizes.larger.number),
            *_deal(by_class[larger <= place], sizes.smaller.number),
            *_deal(by_class[place < uneven], sizes.uneven.number),
        ]
        batches[-1] = batches[-1][np.argsort(self.labels[batches[-1]], kind="stable")]  # as recorded runs have it, too
        order = generator.permutation(len(batches))
        return [batches[index] for index in order]

    def _sizes(self) -> "_Sizes":
        """The sizes of the batches of an epoch: multiples of the number of processes, but for one that takes what is left over."""
        rows, left_over = divmod(len(self.labels), self.num_replicas)
        smaller, num_larger = divmod(rows, len(self))
        num_uneven = min(left_over, 1)
        return _Sizes(
            larger=_Batches(num_larger, (smaller + 1) * self.num_replicas),
            smaller=_Batches(len(self) - num_larger - num_uneven, smaller * self.num_replicas),
            uneven=_Batches(num_uneven, smaller * self.num_replicas + left_over),
        )

    def _shuffled_by_class(self, generator: np.random.Generator) -> Indices:
        """All samples, class after class, the classes and the samples of each in random order."""
        shuffled = generator.permutation(len(self.labels))
        class_order = generator.permutation(int(self.labels.max()) + 1)
        narrow = np.uint16 if len(class_order) <= 2**16 else np.int64  # sorted by radix
        return shuffled[np.argsort(class_order[self.labels[shuffled]].astype(narrow), kind="stable")]

    def _check(self) -> None:
        if self.num_replicas < 1 or not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                "rank must be in 0 ... num_replicas - 1, with at least one replica; "
                f"got rank={self.rank}, num_replicas={self.num_replicas}."
            )
        if self.batch_size < 1 or self.batch_size % self.num_replicas:
            raise ValueError(
                "batch_size is that of the global batch: it must be at least 1 and a multiple of num_replicas; "
                f"got batch_size={self.batch_size}, num_replicas={self.num_replicas}."
            )
        if len(self.labels) // self.num_replicas < len(self):
            raise ValueError(
                "every process needs a sample in every batch; "
                f"got {len(self.labels)} samples for {len(self)} batches over num_replicas={self.num_replicas}. Raise batch_size."
            )


def _checked_labels(labels: Tensor | Sequence[int] | npt.NDArray[np.integer]) -> Indices:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            "labels must be one-dimensional integers, one for each sample and at least one; "
            f"got shape {array.shape} of {array.dtype}."
        )
    if array.min() < 0:
        raise ValueError(f"labels must not be negative; got {array.min()}.")
    if array.max() > MANY_CLASSES:
        # Numbers with large gaps, as identities of people have them, would ask for memory as if every number were a class.
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    return array.astype(np.int64)


def _deal(samples: Indices, num_batches: int) -> list[Indices]:
    """The samples dealt to the batches one after another."""
    return [samples[index::num_batches] for index in range(num_batches)]


class _Batches(NamedTuple):
    """So many batches of one size."""

    number: int
    size: int

    def bounds(self, counts: Indices) -> "_Bounds":
        """What each class may have in all of them together: floor or ceil of its share n B/N in each."""
        total = counts.sum()
        return _Bounds(self.number * (counts * self.size // total), self.number * -(-counts * self.size // total))


class _Sizes(NamedTuple):
    """The batches of an epoch."""

    larger: _Batches
    smaller: _Batches
    uneven: _Batches


class _Bounds(NamedTuple):
    """The least and the most that each class may have, (num_classes,)."""

    least: Indices
    most: Indices


def _shares(counts: Indices, sizes: _Sizes, generator: np.random.Generator) -> tuple[Indices, Indices]:
    """How many samples of each class go to the uneven batch and to the larger batches; the others go to the smaller ones.

    Whole numbers within the bounds always exist: it is a problem of transport, with whole bounds, that the exact shares solve. The
    bounds leave a choice, which is made at random, so that the sizes come out.
    """
    larger, smaller = sizes.larger.bounds(counts), sizes.smaller.bounds(counts)
    wanted = sizes.larger.number * sizes.larger.size

    def possible(left: Indices) -> _Bounds:
        """What the larger batches may have if so many are left for them and the smaller ones."""
        return _Bounds(np.maximum(larger.least, left - smaller.most), np.minimum(larger.most, left - smaller.least))

    in_uneven = _uneven_share(counts, sizes.uneven, possible, wanted)
    least, most = possible(counts - in_uneven)
    places = generator.permutation(np.repeat(np.arange(len(counts)), most - least))[: wanted - int(least.sum())]
    return in_uneven, least + np.bincount(places, minlength=len(counts))


def _uneven_share(counts: Indices, uneven: _Batches, possible: Callable[[Indices], _Bounds], wanted: int) -> Indices:
    """How many samples of each class go to the uneven batch, such that `wanted` remains possible for the larger batches.

    One more sample in the uneven batch lowers the least, the most, both or neither of what its class can give to the larger ones,
    each by one. The least of all classes together must come down to `wanted`, and the most must not go below it. So classes that
    lower the least alone come first and those that lower the most alone come last; of those that lower both, no more than needed
    come before those that lower neither. Classes are in random order, so that there is no favorite.
    """
    share, most = uneven.bounds(counts)
    before, after = possible(counts - share), possible(counts - most)
    lowers_least, lowers_most = before.least > after.least, before.most > after.most
    rounded = most > share

    def those(least: bool, most: bool) -> Indices:
        return np.flatnonzero(rounded & (lowers_least == least) & (lowers_most == most))

    first, both = those(True, False), those(True, True)
    needed = max(int(before.least.sum()) - wanted - len(first), 0)
    in_turn = np.concatenate([first, both[:needed], those(False, False), both[needed:], those(False, True)])
    share[in_turn[: uneven.number * uneven.size - int(share.sum())]] += 1
    return share
