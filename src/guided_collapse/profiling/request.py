"""What `guided-collapse cost` is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from guided_collapse.training.settings.configuration import HeadName, Precision
from guided_collapse.training.settings.placement import Accelerator
from guided_collapse.training.settings.ranges import COUNT, POSITIVE_COUNT, Range, at_least, check_ranges


@dataclass(frozen=True)
class CostRequest:
    """What a training step of each head costs: real steps, on random inputs of the experiment's shape."""

    heads: tuple[HeadName, ...] = ("standard", "fixed", "implicit", "implicit-detached", "implicit-lagged")
    """Heads to measure."""
    paper_route: bool = True
    """Also the implicit head by the paper's own route, the trust region and the dense gradient, where it fits."""
    steps: int = 10
    """Measured steps, of which the median is taken."""
    warm_up: int = 3
    """Steps before them."""
    batch_size: int | None = None
    """Samples in a step; None is the experiment's."""
    precision: Precision = "32-true"
    """Of the forward and backward pass."""
    accelerator: Accelerator = "auto"
    """Kind of device."""
    limit_seconds: float = 240.0
    """Time for one head, with its start; what is not done by then is given up, and the record says so."""
    out: Path = Path("runs")
    """The folder that takes the place of `runs`."""

    def __post_init__(self) -> None:
        check_ranges(self, _COST_RANGES)
        if not self.heads and not self.paper_route:
            raise ValueError("cost needs at least one head; got none. Give --heads, or leave --no-paper-route out.")


_COST_RANGES: Mapping[str, Range] = {
    "steps": at_least(1),
    "warm_up": COUNT,
    "batch_size": POSITIVE_COUNT,
    "limit_seconds": Range("positive and at most a day", 1e-3, 86400.0),
}
