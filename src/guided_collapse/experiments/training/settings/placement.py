"""Where a run is computed and kept: devices, processes, folders."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from guided_collapse.experiments.training.settings.checks import COUNT, NOT_NEGATIVE, Range, at_least, check_ranges

Accelerator = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class Placement:
    """Where a run is computed and kept; this does not change what it computes.

    Example:
        >>> from guided_collapse.experiments import Placement
        >>> Placement(devices=4, nodes=2).processes
        8
    """

    out: Path = Path("runs")
    """Output folder."""
    data_root: Path | None = None
    """Folder of all data sets; by default $GUIDED_COLLAPSE_DATA, or a folder in the user's cache."""
    accelerator: Accelerator = "auto"
    """Kind of device to run on."""
    devices: int = 1
    """Number of devices per machine; with several, each gets its own process."""
    nodes: int = 1
    """Number of machines; start the same command on each with torchrun, Slurm or another launcher known to Lightning Fabric."""
    num_workers: int = 2
    """Number of processes that load images, for data sets too large for memory."""
    checkpoint_seconds: float = 30.0
    """Shortest time between two checkpoints; the first and the last epoch always get one."""
    lengthen: bool = False
    """Extend a shorter run of the same configuration to this many epochs, if its learning rate is constant."""
    quiet: bool = False
    """Print one line per measurement instead of a progress bar."""
    tensorboard: bool = False
    """Also write curves for TensorBoard into the run's folder."""

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
