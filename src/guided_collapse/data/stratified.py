"""Batches in which every class has its share."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

Indices = npt.NDArray[np.int64]


class StratifiedBatchSampler(Sampler[list[int]]):
    """A batch sampler: each epoch gives every sample once, in batches in which every class has its share within one sample.

    `batch_size` is that of the global batch, whatever the number of processes: the global batch is stratified, then divided so that
    each process gets its part of every class. Batches of an epoch are as even as they can be: ceil(num_samples / batch_size) of
    them, whose sizes differ by no more than `num_replicas`, so no small batch remains at the end. The order depends on
    (seed, epoch) alone. Use it as `DataLoader(dataset, batch_sampler=sampler)` and call `set_epoch` before each epoch.

    If `num_replicas` does not divide the number of samples, the few that are left over ride along in one batch.

    Args:
        labels: class index of every sample, one-dimensional, integers.
        batch_size: samples in a global batch, at most; a multiple of `num_replicas`.
        num_replicas: processes that share a batch; None takes torch.distributed's world size, or 1.
        rank: this process; None takes torch.distributed's rank, or 0.
        seed: source of the order.

    Raises:
        ValueError: for labels or sizes that do not fit.
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
        self.num_replicas = num_replicas if num_replicas is not None else dist.get_world_size() if distributed else 1
        self.rank = rank if rank is not None else dist.get_rank() if distributed else 0
        self.labels = _checked_labels(labels)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self._check()

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of batches of an epoch, the same in every process."""
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._global_batches():
            # The batch is ordered by class here, so that dealing gives each process its part of every class.
            yield batch[self.rank :: self.num_replicas].tolist()

    def _global_batches(self) -> list[Indices]:
        """The batches of the epoch, each ordered by class: samples are dealt out to the batches class by class, like cards."""
        generator = np.random.default_rng([self.seed, self.epoch])
        by_class = self._shuffled_by_class(generator)
        num_batches = len(self)
        rows, left_over = divmod(len(self.labels), self.num_replicas)
        smaller, num_larger = divmod(rows, num_batches)
        # Left-over samples come from evenly spaced places, so that classes have their share in them too.
        extra = ((np.arange(left_over) + generator.random()) * len(by_class) / max(left_over, 1)).astype(np.int64)
        riding_along, dealt = by_class[extra], np.delete(by_class, extra)
        in_larger = self._choose_for_larger(dealt, num_larger, smaller + 1, num_batches - num_larger, smaller, generator)
        batches = [*_deal(dealt[in_larger], num_larger), *_deal(dealt[~in_larger], num_batches - num_larger)]
        fuller = np.concatenate([batches[-1], riding_along])
        batches[-1] = fuller[np.argsort(self.labels[fuller], kind="stable")]
        order = generator.permutation(num_batches)
        return [batches[index] for index in order]

    def _shuffled_by_class(self, generator: np.random.Generator) -> Indices:
        """All samples, class after class, the classes and the samples of each in random order."""
        shuffled = generator.permutation(len(self.labels))
        class_order = generator.permutation(int(self.labels.max()) + 1)
        narrow = np.uint16 if len(class_order) <= 2**16 else np.int64  # sorted by radix
        return shuffled[np.argsort(class_order[self.labels[shuffled]].astype(narrow), kind="stable")]

    def _choose_for_larger(
        self,
        dealt: Indices,
        num_larger: int,
        larger_rows: int,
        num_smaller: int,
        smaller_rows: int,
        generator: np.random.Generator,
    ) -> npt.NDArray[np.bool_]:
        """Which samples go to the larger batches.

        A class with n of all N samples should have floor or ceil of n B/N in each batch of size B. That bounds its share of the
        larger batches from both sides, by whole numbers; the bounds leave a choice, which is made at random, so that the sizes come
        out.
        """
        dealt_labels = self.labels[dealt]
        starts = np.flatnonzero(np.r_[True, dealt_labels[1:] != dealt_labels[:-1]])
        counts = np.diff(np.r_[starts, len(dealt)])
        least, most = _bounds(counts, num_larger, larger_rows * self.num_replicas)
        least_smaller, most_smaller = _bounds(counts, num_smaller, smaller_rows * self.num_replicas)
        share = np.maximum(least, counts - most_smaller)
        room = np.minimum(most, counts - least_smaller) - share
        missing = num_larger * larger_rows * self.num_replicas - int(share.sum())
        places = generator.permutation(np.repeat(np.arange(len(counts)), room))[:missing]
        share += np.bincount(places, minlength=len(counts))
        position_in_class = np.arange(len(dealt)) - np.repeat(starts, counts)
        return position_in_class < np.repeat(share, counts)

    def _check(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must not be negative; got {self.seed}.")
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
    return array.astype(np.int64)


def _deal(samples: Indices, num_batches: int) -> list[Indices]:
    """The samples dealt to the batches one after another."""
    return [samples[index::num_batches] for index in range(num_batches)]


def _bounds(counts: Indices, num_batches: int, batch_size: int) -> tuple[Indices, Indices]:
    """The least and the most that each class may have in so many batches of this size together."""
    total = counts.sum()
    return num_batches * (counts * batch_size // total), num_batches * -(-counts * batch_size // total)
