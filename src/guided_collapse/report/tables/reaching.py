"""Epochs and seconds until a train accuracy is reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guided_collapse.records.quantities import TRAIN_TOP1
from guided_collapse.records.run import Run
from guided_collapse.report.summaries import Spread, spread

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
