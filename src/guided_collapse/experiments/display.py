"""Output during runs: a progress bar or lines, and curves in TensorBoard."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.run import EpochRecord
from guided_collapse.lazy import optional
from guided_collapse.metrics.declared import LOSS, NC1, SPLITS, TOP1

if TYPE_CHECKING:
    from torch import Tensor

REFRESH_SECONDS = 0.2


class Series:
    """The progress of the runs of one command, with an estimate of the time left.

    The estimate is based on the training that this command has done so far, including the current run but not skipped runs.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.trained, self.start = 0.0, time.perf_counter()  # number of runs that this command has trained, and when it started

    def left(self, part: float = 0.0, part_before: float = 0.0) -> str:
        """Returns the estimated time left as text, or "" before any training.

        `part` is the fraction of the current run that is done, and `part_before` the fraction that was done when it resumed.
        """
        trained = self.trained + part - part_before
        if trained <= 0:
            return ""
        seconds = round((time.perf_counter() - self.start) / trained * (self.total - self.done - part))
        minutes = f"{seconds // 3600}:{seconds // 60 % 60:02}" if seconds >= 3600 else f"{seconds // 60}"
        return f"{minutes}:{seconds % 60:02} left"


class Display:
    """Shows the progress of a run: a progress bar on a terminal, or plain lines elsewhere or if `quiet` is set.

    TensorBoard files go to `curves`. `silent`, set in every process but the first, turns off all output. `done_steps` is the number
    of steps done before a resume. On a terminal, each run of a series leaves a single line behind.
    """

    def __init__(
        self,
        title: str,
        total_steps: int,
        done_steps: int,
        *,
        quiet: bool,
        silent: bool,
        curves: Path | None = None,
        series: Series | None = None,
    ) -> None:
        self.series = Series(1) if series is None else series
        self.several = self.series.total > 1
        self.title = f"run {self.series.done + 1} of {self.series.total}: {title}" if self.several else title
        self.next_refresh, self.part_before, self.last = 0.0, done_steps / total_steps, ""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        self.console = Console(stderr=True, quiet=silent, markup=False, emoji=False, highlight=False)
        self.plain = quiet or silent or not sys.stderr.isatty()
        self.progress = Progress(*columns, console=self.console, disable=self.plain, transient=self.several)
        shown = f"run {self.series.done + 1} of {self.series.total}" if self.several else ""
        self.bar = self.progress.add_task(shown, total=total_steps, completed=done_steps, numbers="")
        self.writer: Any = None
        if curves is not None and not silent:
            with requested():
                tensorboard = optional("torch.utils.tensorboard", extra="tensorboard", package="tensorboard")
            self.writer = tensorboard.SummaryWriter(str(curves))

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.progress.stop()
        self.series.trained += self.progress.tasks[0].percentage / 100 - self.part_before
        if kind is None and self.several and not self.plain:
            self.console.print(f"{self.title}: {self.last}", soft_wrap=True)
        if self.writer is not None:
            self.writer.close()

    def step(self, epoch: int, loss_sum: "Tensor", correct: "Tensor", samples: int) -> None:
        """Counts a step. Shows loss and accuracy only every REFRESH_SECONDS, because reading them synchronizes with the device."""
        self.progress.advance(self.bar)
        if not self.plain and time.perf_counter() >= self.next_refresh:
            self.next_refresh = time.perf_counter() + REFRESH_SECONDS
            task = self.progress.tasks[0]
            left = self.series.left(task.percentage / 100, self.part_before)
            numbers = f"epoch {epoch}  loss {float(loss_sum) / samples:.4f}  training-mode acc {int(correct) / samples:.1%}  {left}"
            self.progress.update(self.bar, numbers=numbers)

    def add(self, record: EpochRecord) -> None:
        """Shows the measurement of an epoch, if there is one, and adds all numbers of the record to the TensorBoard curves."""
        measured = {split: record.measured(split) for split in SPLITS}
        if record.train:
            nc1 = record.train.get(NC1.name)
            end = [] if nc1 is None else [f"NC1 {nc1:.3g}"]
            short = [f"{split} acc {found[TOP1.name]:.2%}" for split, found in measured.items() if found]
            full = [f"{split} loss {found[LOSS.name]:.4f} acc {found[TOP1.name]:.2%}" for split, found in measured.items() if found]
            self.last = "  ".join([*short, *end])
            line = "  ".join([f"epoch {record.epoch}", *full, *end])
            if self.plain:
                self.say(line)
            elif not self.several:
                self.console.print(line, soft_wrap=True)
        if self.writer is not None:
            for part, values in (("running", record.running), ("train", record.train), ("test", record.test)):
                for name, value in (values or {}).items():
                    if value is not None:
                        self.writer.add_scalar(f"{part}/{name}", value, record.epoch)

    def say(self, words: str) -> None:
        """Prints a line about the run, except on a terminal if the run is one of several, which leave only a final line each."""
        if self.plain or not self.several:
            self.console.print(f"{self.title}: {words}", soft_wrap=True)
