"""Where a run runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from guided_collapse.training.settings.ranges import COUNT, NOT_NEGATIVE, Range, at_least, check_ranges

Accelerator = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class Placement:
    """The machine's side of a run: it changes where a run is and how long it takes, not what it is meant to compute."""

    out: Path = Path("runs")
    """The folder that takes the place of `runs`."""
    data_root: Path | None = None
    """The folder of all data sets; None is the environment variable GUIDED_COLLAPSE_DATA, or a folder in the user's cache."""
    accelerator: Accelerator = "auto"
    """Kind of device."""
    devices: int = 1
    """Devices of each node; with more than one, or several nodes, each has a process of its own."""
    nodes: int = 1
    """Machines; start the same command on each under torchrun, Slurm or another launcher that Fabric knows."""
    strategy: Literal["auto", "ddp"] = "auto"
    """How processes work together; auto is ddp for several of them."""
    num_workers: int = 2
    """Processes that read images of data sets that are too large for memory."""
    checkpoint_seconds: float = 30.0
    """Least time between checkpoints, which are taken at the end of an epoch, also of the first and the last."""
    lengthen: bool = False
    """A shorter run of the same configuration goes on where it ended, if its learning rate is constant."""
    quiet: bool = False
    """One line for each measurement instead of a progress bar."""
    tensorboard: bool = False
    """Write curves for TensorBoard beside the records."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)

    @property
    def processes(self) -> int:
        """How many processes share a batch."""
        return self.devices * self.nodes


_RANGES: Mapping[str, Range] = {
    "devices": at_least(1),
    "nodes": at_least(1),
    "num_workers": COUNT,
    "checkpoint_seconds": NOT_NEGATIVE,
}
