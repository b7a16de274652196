"""Draws batches, divides them among processes, and moves them to a device."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from guided_collapse.experiments.data.split import Split
from guided_collapse.sampling import SeededBatchSampler

PREFETCHED_BATCHES = 4  # per worker process


class ProcessShare(NamedTuple):
    """Which part of every batch belongs to this process, and the device that the part is moved to."""

    rank: int = 0
    processes: int = 1
    device: torch.device = torch.device("cpu")

    def of_batches(self, sampler: SeededBatchSampler) -> Iterator[list[int]]:
        """Yields this process's part of every batch; for stratified batches, its part of every class."""
        smallest = sampler.num_samples // len(sampler)
        if smallest < self.processes:
            raise ValueError(
                f"every process needs a sample in every batch; got batches of {smallest} for {self.processes} processes. "
                "Raise batch_size."
            )
        yield from sampler.parts(self.rank, self.processes)

    def in_order(self, num_samples: int, *, batch_size: int) -> list[list[int]]:
        """Returns the indices of every `processes`-th sample from `rank` on, in order, in batches of at most `batch_size`."""
        own = range(self.rank, num_samples, self.processes)
        return [list(own[start : start + batch_size]) for start in range(0, len(own), batch_size)]


class ShuffledBatchSampler(SeededBatchSampler):
    """Yields every sample once per epoch, in random order, in batches of nearly equal size."""

    def __iter__(self) -> Iterator[list[int]]:
        return self.parts(0, 1)

    def parts(self, rank: int, processes: int) -> Iterator[list[int]]:
        """Yields one process's part of every batch; samples are dealt to the processes in turn."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        for batch in np.array_split(order, len(self)):
            yield batch[rank::processes].tolist()


class Batch(NamedTuple):
    """The samples of one step: inputs, as stored or as the network takes them, and int64 labels, (num_samples,)."""

    inputs: Tensor
    labels: Tensor


def batches(split: Split, sampler: Iterable[list[int]], *, device: torch.device | str, num_workers: int = 0) -> Iterator[Batch]:
    """Yields batches of unchanged images, in the order of the sampler.

    Images in memory are indexed on their own device. Streamed images are read and decoded ahead by `num_workers`
    processes, which live for one epoch, so that the sampler may change between epochs; with 0 workers, this process reads them.
    Nothing draws from torch's global generator.
    """
    device = torch.device(device)
    if isinstance(split.images, Tensor):
        for chosen in sampler:
            indices = torch.tensor(chosen, dtype=torch.int64)
            images = split.images.index_select(0, indices.to(split.images.device))
            yield Batch(images.to(device), split.labels[indices].to(device))
        return
    pinned = device.type == "cuda"
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        split,
        batch_sampler=sampler,
        num_workers=num_workers,
        pin_memory=pinned,
        prefetch_factor=PREFETCHED_BATCHES if num_workers else None,
        generator=torch.Generator(),  # the loader draws a seed for its workers, which must not come from the global generator
    )
    for images, labels in loader:
        yield Batch(images.to(device, non_blocking=pinned), labels.to(device))
