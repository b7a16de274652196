"""Median and range over seeds: of a quantity over epochs or at one, and of the sorted margins at the end of training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from guided_collapse.experiments.records.declared.quantities import Quantity
from guided_collapse.experiments.records.epochs import Epochs
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.schema import Floats, Integers, Split

MOST_MARGINS = 501  # points of a curve of margins


@dataclass(frozen=True)
class Spread:
    """The median over seeds, the lowest, the highest, and over how many seeds; in the units that are shown."""

    median: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, eq=False)
class Curve:
    """Median, lowest and highest over seeds at each x, (num_points,) each, and of how many seeds each is."""

    x: Floats
    median: Floats
    low: Floats
    high: Floats
    count: Integers


@dataclass(frozen=True)
class AtEpoch:
    """The spread at an epoch, and the epoch that each run's value is from."""

    spread: Spread
    epochs: tuple[int, ...]


def spread(values: Sequence[float] | Floats) -> Spread:
    """Median and range of at least one value; an infinite value stands for what never happened."""
    return Spread(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values))


def curve_over(x: Floats, values: Floats) -> Curve | None:
    """Median and range over the rows of (num_runs, num_points) values, where there are any; None if there are none.

    NaN stands for a value that was not measured. At each point the runs that have a value count, so a run that is shorter than the
    others counts as far as it goes.
    """
    known = ~np.isnan(values)
    some = known.any(axis=0)
    if not some.any():
        return None
    values = values[:, some]
    return Curve(
        x[some], np.nanmedian(values, axis=0), np.nanmin(values, axis=0), np.nanmax(values, axis=0), known.sum(axis=0)[some]
    )


def over_seeds(runs: Sequence[Run], quantity: Quantity) -> Curve | None:
    """A quantity of several runs over epochs; None if none has measured it."""
    return over_runs([run.epochs for run in runs], quantity)


def over_runs(runs: Sequence[Epochs], quantity: Quantity) -> Curve | None:
    """The same from the epochs of each run."""
    epochs = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *(run.numbers for run in runs)]))
    values = np.full((len(runs), len(epochs)), np.nan)
    for row, run in enumerate(runs):
        values[row, np.searchsorted(epochs, run.numbers)] = run.of(quantity.split, quantity.name) * quantity.factor
    return curve_over(epochs.astype(np.float64), values)


def at_epoch(runs: Sequence[Run], quantity: Quantity, epoch: int | None) -> AtEpoch | None:
    """A quantity at an epoch: of each run the last measurement at or before it; None if there is none.

    Args:
        runs: over which the median is taken; those without such a measurement do not count.
        quantity: what is shown.
        epoch: None takes the last measurement of each run.
    """
    values, epochs = [], []
    for run in runs:
        measured = run.epochs.of(quantity.split, quantity.name)
        usable = ~np.isnan(measured) & (run.epochs.numbers <= (np.inf if epoch is None else epoch))
        if usable.any():
            last = int(np.flatnonzero(usable)[-1])
            values.append(float(measured[last]) * quantity.factor)
            epochs.append(int(run.epochs.numbers[last]))
    return AtEpoch(spread(values), tuple(epochs)) if values else None


def margins_over_seeds(runs: Sequence[Run], split: Split) -> Curve | None:
    """Sorted margins over the share of samples in per cent; None if no run has them.

    With m_1 <= ... <= m_N, the margin at the share q is the one at the place 1 + q (N-1), between neighbors in proportion. Median
    and range are over seeds at each share.
    """
    margins = [run.margins[split] for run in runs if split in run.margins]
    if not margins:
        return None
    shares = np.linspace(0, 1, min(MOST_MARGINS, max(2, *(len(values) for values in margins))))
    rows = [np.interp(shares * (len(values) - 1), np.arange(len(values)), values) for values in margins]
    return curve_over(100 * shares, np.stack(rows))
