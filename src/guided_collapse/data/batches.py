"""Batches of a split on a device."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from guided_collapse.data.split import Split

PREFETCHED_BATCHES = 4  # of each worker process


class Batch(NamedTuple):
    """Samples of one step.

    Attributes:
        images: uint8 (num_samples, channels, height, width), on the device that was asked for.
        labels: int64 (num_samples,), there too.
        indices: int64 (num_samples,), which samples of the split these are, on the CPU.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


def batches(split: Split, sampler: Iterable[list[int]], *, device: torch.device | str, num_workers: int = 0) -> Iterator[Batch]:
    """The batches of one epoch, in the order of the sampler.

    Images in memory are picked on the device where they are. Streamed images are read and decoded ahead by worker processes, which
    live as long as the epoch, so that the sampler may change between epochs. Neither draws from torch's global generator.

    Args:
        split: where the samples come from.
        sampler: lists of sample indices, for example a `StratifiedBatchSampler`.
        device: where the batches go.
        num_workers: processes that read streamed images; 0 reads them here. Images in memory need none.
    """
    device = torch.device(device)
    if isinstance(split.images, Tensor):
        for chosen in sampler:
            indices = torch.tensor(chosen, dtype=torch.int64)
            images = split.images.index_select(0, indices.to(split.images.device))
            yield Batch(images.to(device), split.labels[indices].to(device), indices)
        return
    pinned = device.type == "cuda"
    loader: DataLoader[tuple[int, Tensor]] = DataLoader(
        _Numbered(split.images),
        batch_sampler=sampler,
        num_workers=num_workers,
        collate_fn=_stack,
        pin_memory=pinned,
        prefetch_factor=PREFETCHED_BATCHES if num_workers else None,
        generator=torch.Generator(),  # the loader draws a seed for its workers; it must not be the global generator's
    )
    for indices, images in loader:
        labels = split.labels[indices]
        yield Batch(images.to(device, non_blocking=pinned), labels.to(device), indices)


class _Numbered(Dataset[tuple[int, Tensor]]):
    """Images with their indices, so that a batch knows its samples."""

    def __init__(self, images: Dataset[Tensor]) -> None:
        self.images = images

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, self.images[index]


def _stack(samples: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    indices, images = zip(*samples, strict=True)
    return torch.tensor(indices, dtype=torch.int64), torch.stack(images)
