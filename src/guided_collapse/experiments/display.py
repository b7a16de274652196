"""What a user sees during a run: a progress bar or lines, and curves in TensorBoard."""

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.run import EpochRecord
from guided_collapse.lazy import optional
from guided_collapse.metrics.declared import LOSS, NC1, SPLITS, TOP1

REFRESH_SECONDS = 0.2


class Display:
    """A progress bar on a terminal, or with `quiet` one line for each measurement; and curves for TensorBoard in a folder.

    It is silent in all but the first of several processes. `done_steps` are those before a resume.
    """

    def __init__(
        self, title: str, total_steps: int, done_steps: int, *, quiet: bool, silent: bool, curves: Path | None = None
    ) -> None:
        self.title, self.next_refresh = title, 0.0
        columns = (BarColumn(bar_width=20), TaskProgressColumn(), TextColumn("{task.fields[numbers]}"), TimeRemainingColumn())
        self.console = Console(stderr=True, quiet=silent, markup=False, emoji=False, highlight=False)
        self.progress = Progress(*columns, console=self.console, disable=quiet or silent or not sys.stderr.isatty())
        self.bar = self.progress.add_task(title, total=total_steps, completed=done_steps, numbers="")
        self.writer: Any = None
        if curves is not None and not silent:
            with requested():
                tensorboard = optional("torch.utils.tensorboard", extra="tensorboard", package="tensorboard")
            self.writer = tensorboard.SummaryWriter(str(curves))

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        if self.writer is not None:
            self.writer.close()

    def step(self, epoch: int, loss_sum: Tensor, correct: Tensor, samples: int) -> None:
        """Counts a step and, when it is time, shows the numbers of the epoch so far, which costs a synchronization."""
        self.progress.advance(self.bar)
        if not self.progress.disable and time.perf_counter() >= self.next_refresh:
            self.next_refresh = time.perf_counter() + REFRESH_SECONDS
            numbers = f"epoch {epoch}  loss {float(loss_sum) / samples:.4f}  acc {int(correct) / samples:.1%}"
            self.progress.update(self.bar, numbers=numbers)

    def add(self, record: EpochRecord) -> None:
        """Prints the measurement of an epoch, if there was one, and adds all its numbers to the curves."""
        parts = [f"epoch {record.epoch}"]
        for split in SPLITS:
            if found := record.measured(split):
                parts.append(f"{split} loss {found[LOSS.name]:.4f} acc {found[TOP1.name]:.2%}")
        if record.train:
            nc1 = record.train.get(NC1.name)
            self.say("  ".join(parts if nc1 is None else [*parts, f"NC1 {nc1:.3g}"]))
        if self.writer is not None:
            for part, values in (("running", record.running), ("train", record.train), ("test", record.test)):
                for name, value in (values or {}).items():
                    if value is not None:
                        self.writer.add_scalar(f"{part}/{name}", value, record.epoch)

    def say(self, words: str) -> None:
        """Prints a line about the run."""
        self.console.print(f"{self.title}: {words}", soft_wrap=True)
