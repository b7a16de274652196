"""What a trainer's callback measures, and when; shared out among the trainer's processes."""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch.distributed as dist
from torch import nn

from guided_collapse.metrics.model import Loader, collapse_of


@dataclass(frozen=True)
class RepeatedMeasurement:
    """How collapsed a model is, every so many epochs."""

    loader: Loader
    """Batches of all samples, the same ones in every process, without augmentation, as `collapse_of` takes them."""
    every: int
    """After how many epochs it is measured again."""
    test_loader: Loader | None
    """Batches of other samples."""
    classifier: str | None
    """The name of the last linear layer; None for a model with a head of this package."""
    prefix: str
    """What the names of the numbers begin with."""

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be a whole number of epochs, at least 1; got {self.every!r}.")

    def is_due(self, finished_epochs: int) -> bool:
        """Whether it is time after so many epochs."""
        return finished_epochs % self.every == 0

    def scalars(self, model: nn.Module) -> dict[str, float]:
        """The numbers of `collapse_of`, the same in every process; each process takes its share of the batches."""
        result = collapse_of(
            model,
            _OwnBatches(self.loader),
            test_loader=None if self.test_loader is None else _OwnBatches(self.test_loader),
            classifier=self.classifier,
            progress=False,
        )
        return result.scalars(self.prefix)


class _OwnBatches:
    """Every so manieth batch of a loader, as many as there are processes, beginning with this process's own."""

    def __init__(self, loader: Loader) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        self.loader = loader
        self.rank, self.processes = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
        if self.processes == 1:
            return
        num_batches = len(loader) if isinstance(loader, Sized) else None
        if num_batches is None or num_batches < self.processes:
            raise ValueError(
                "the loader must have a length and a batch for every process, or some would wait for the others for ever; "
                f"got {num_batches or 'no length'} for {self.processes} processes. Give smaller batches, or a DataLoader."
            )

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.rank, None, self.processes)
