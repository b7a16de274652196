"""What a user sees while a run goes on: a progress bar or lines, and curves in TensorBoard."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.records.schema import SPLITS, EpochRecord
from guided_collapse.metrics.declared import LOSS, NC1, TOP1
from guided_collapse.lazy import optional

REFRESH_SECONDS = 0.2


class Display:
    """A progress bar on a terminal, or one line for each measurement.

    Args:
        title: what runs.
        total_steps: steps of the whole run.
        done_steps: those done before a resume.
        quiet: lines instead of a bar.
        silent: nothing at all: another process shows it.
    """

    def __init__(self, title: str, total_steps: int, done_steps: int, *, quiet: bool, silent: bool) -> None:
        self.title = title
        self.silent = silent
        self.lines = quiet or not sys.stderr.isatty()
        self.next_refresh = 0.0
        self.seen_images = 0
        self.started = time.perf_counter()
        self.progress = Progress(
            # Without the title, which the line above has said, it fits 80 columns.
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=silent or self.lines,
        )
        self.bar = self.progress.add_task(title, total=total_steps, completed=done_steps, numbers="")

    def __enter__(self) -> "Display":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def begins(self, epoch: int, epochs: int, devices: str) -> None:
        """Says with which epoch the run begins, or goes on, and on what."""
        self._say(f"begins with epoch {epoch} of {epochs} on {devices}")

    def step(self, images: int) -> bool:
        """Counts a step; whether it is time to show numbers, which are not free to get."""
        self.seen_images += images
        self.progress.advance(self.bar)
        now = time.perf_counter()
        if self.silent or self.lines or now < self.next_refresh:
            return False
        self.next_refresh = now + REFRESH_SECONDS
        return True

    def show(self, epoch: int, loss: float, top1: float) -> None:
        """Shows the numbers of the epoch so far."""
        rate = self.seen_images / (time.perf_counter() - self.started)
        numbers = f"epoch {epoch}  loss {loss:.4f}  acc {top1:.1%}  {rate:,.0f}/s"
        self.progress.update(self.bar, numbers=numbers)

    def measured(self, record: EpochRecord) -> None:
        """Says what a measurement found."""
        parts = [f"epoch {record.epoch}"]
        for split in SPLITS:
            found = record.measured(split)
            if found:
                parts.append(f"{split} loss {found[LOSS.name]:.4f} acc {found[TOP1.name]:.2%}")
        variability = (record.train or {}).get(NC1.name)
        if variability is not None:
            parts.append(f"NC1 {variability:.3g}")
        self._say("  ".join(parts))

    def _say(self, words: str) -> None:
        line = f"{self.title}: {words}"
        if self.silent:
            return
        if self.lines:
            print(line, file=sys.stderr, flush=True)
        else:
            self.progress.console.print(line, highlight=False)


class Curves:
    """Curves for TensorBoard of every number in the records, or nothing without a folder.

    Args:
        folder: where TensorBoard's files go.

    Raises:
        RequestError: if TensorBoard is not installed.
    """

    def __init__(self, folder: Path | None) -> None:
        self.writer: Any = None
        if folder is None:
            return
        with requested():
            tensorboard = optional("torch.utils.tensorboard", extra="tensorboard", package="tensorboard")
        self.writer = tensorboard.SummaryWriter(str(folder))

    def __enter__(self) -> "Curves":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.writer is not None:
            self.writer.close()

    def add(self, record: EpochRecord) -> None:
        """Adds the numbers of an epoch."""
        if self.writer is None:
            return
        for part, values in record.parts().items():
            for name, value in values.items():
                if value is not None:
                    self.writer.add_scalar(f"{part}/{name}", value, record.epoch)
