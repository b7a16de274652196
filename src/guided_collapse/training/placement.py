"""Where a run runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Placement:
    """The machine's side of a run: it changes where a run is and how long it takes, not what it is meant to compute."""

    out: Path = Path("runs")
    """The folder that takes the place of `runs`."""
    data_root: Path | None = None
    """The folder of all data sets; None is the environment variable GUIDED_COLLAPSE_DATA, or a folder in the user's cache."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
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
        for name in ("devices", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if self.num_workers < 0 or self.checkpoint_seconds < 0:
            raise ValueError(
                f"num_workers and checkpoint_seconds must not be negative; got {self.num_workers} and {self.checkpoint_seconds}."
            )

    @property
    def processes(self) -> int:
        """How many processes share a batch."""
        return self.devices * self.nodes
