"""The part that both callbacks share: how often they measure, and how processes divide the batches."""

from collections.abc import Iterator, Sized
from itertools import islice
from typing import Any

from torch import nn

from guided_collapse.metrics.measure import Loader, collapse_of
from guided_collapse.sampling import checked_integer, world_size_and_rank


class RepeatedMeasurement:
    """A measurement that a callback repeats every few epochs. Arguments are those of the callback."""

    def __init__(self, loader: Loader, every: int, test_loader: Loader | None, classifier: str | None, prefix: str) -> None:
        self.every = checked_integer(every, "every", at_least=1)
        self.loader, self.test_loader, self.classifier, self.prefix = loader, test_loader, classifier, prefix

    def scalars(self, model: nn.Module) -> dict[str, float]:
        """Returns the metrics of `collapse_of`, the same in every process; each process measures its share of the batches."""
        test_loader = None if self.test_loader is None else _OwnBatches(self.test_loader)
        result = collapse_of(model, _OwnBatches(self.loader), test_loader=test_loader, classifier=self.classifier)
        return result.scalars(self.prefix)


class _OwnBatches:
    """Every `world_size`-th batch of a loader, starting at this process's rank."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.processes, self.rank = world_size_and_rank()
        num_batches = len(loader) if isinstance(loader, Sized) else None
        if self.processes > 1 and (num_batches is None or num_batches < self.processes):
            raise ValueError(
                "the loader must have a length and at least one batch per process, or processes would deadlock; "
                f"got {num_batches or 'no length'} for {self.processes} processes. Use smaller batches, or a DataLoader."
            )

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.rank, None, self.processes)
