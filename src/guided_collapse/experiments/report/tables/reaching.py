"""Epochs and seconds until a train accuracy is reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from guided_collapse.experiments.records.declared.quantities import TRAIN_TOP1
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.summaries import Spread, spread
from guided_collapse.experiments.report.tables.accuracy import seed_notes
from guided_collapse.experiments.report.tables.table import Cell, CsvRow, Table, spread_cell, spread_values, words

Unit = Literal["epochs", "seconds"]

LEVELS = (50, 80, 90, 95, 99, 100)
# Recorded accuracies may have been rounded to float32; one sample more or less is a larger step in any data set here.
TOLERANCE = 1e-7


@dataclass(frozen=True)
class Reached:
    """When runs first reached a level of train accuracy, in eval mode.

    Attributes:
        level: in per cent.
        reached: how many runs did.
        epochs: median and range; infinite for runs that never did.
        seconds: of training; None if the time of some run is not known.
    """

    level: int
    reached: int
    epochs: Spread
    seconds: Spread | None


def when_reached(runs: Sequence[Run], level: int) -> Reached | None:
    """When runs reached a level; None if no run has measured its train accuracy."""
    epochs, seconds = [], []
    for run in runs:
        accuracies = run.epochs.of(TRAIN_TOP1.split, TRAIN_TOP1.name)
        if np.isnan(accuracies).all():
            continue
        above = np.flatnonzero(accuracies >= level / 100 - TOLERANCE)
        epochs.append(float(run.epochs.numbers[above[0]]) if len(above) > 0 else math.inf)
        elapsed = run.epochs.elapsed()
        never = math.nan if np.isnan(elapsed).all() else math.inf
        seconds.append(float(elapsed[above[0]]) if len(above) > 0 else never)
    if not epochs:
        return None
    known = not any(math.isnan(value) for value in seconds)
    return Reached(level, sum(map(math.isfinite, epochs)), spread(epochs), spread(seconds) if known else None)


def reaching_table(experiments: Sequence[Experiment], unit: Unit) -> Table | None:
    """Epochs or seconds until levels of train accuracy; None if no train accuracy was measured, or no time."""
    rows, csv_rows = [], []
    for experiment in experiments:
        for head in experiment.heads:
            reached = [when for level in LEVELS if (when := when_reached(experiment.of(head), level))]
            if any(when.epochs if unit == "epochs" else when.seconds for when in reached):
                rows.append((words(experiment.name), words(head), *(_reached_cell(when, unit) for when in reached)))
                csv_rows += [_reached_row(experiment.name, head, when, unit) for when in reached]
    if not rows:
        return None
    return Table(
        name=f"{unit}-to-accuracy",
        title=f"{unit.capitalize()} of training until a train accuracy is first measured, median and range over seeds",
        stub=2,
        columns=("experiment", "head", *(f"{level} %" for level in LEVELS)),
        rows=tuple(rows),
        csv_rows=tuple(csv_rows),
        notes=(
            "Measured in eval mode, so the resolution is that of the measured epochs. A run that has not reached a level counts as "
            "never in the median.",
            *seed_notes(experiments),
        ),
    )


def _reached_cell(when: Reached, unit: Unit) -> Cell:
    if when.reached == 0:
        return words("not reached")
    cell = spread_cell(when.epochs if unit == "epochs" else when.seconds)
    if when.reached == when.epochs.count:
        return cell
    part = f", {when.reached} of {when.epochs.count}"
    return Cell(cell.text + part, cell.latex + part)


def _reached_row(experiment: str, head: str, when: Reached, unit: Unit) -> CsvRow:
    start: CsvRow = {"experiment": experiment, "head": head, "train_accuracy_percent": when.level}
    # A time that is not known and one that never came are both empty.
    spread = when.epochs if unit == "epochs" else when.seconds or Spread(math.inf, math.inf, math.inf, when.epochs.count)
    known = {name: value if math.isfinite(value) else None for name, value in spread_values(spread).items()}
    return {**start, **known, "reached": when.reached, "seeds": when.epochs.count}
