"""Summaries of runs: experiments, medians and ranges over seeds, curves over epochs, and the time to reach an accuracy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pandas import DataFrame, Series

from guided_collapse.experiments.records import QUANTITIES, TEST_TOP1, TRAIN_LOSS, TRAIN_TOP1, Quantity, Run, read_records
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.run import read_epoch_records
from guided_collapse.metrics.declared import SPLITS, Split, best_margin

MAX_MARGINS = 501  # number of points in a curve of margins
LEVELS = (50, 80, 90, 95, 99, 100)  # levels of train accuracy, in percent
TOLERANCE = 1e-5  # for accuracies in percent, which may be rounded to float32; less than one sample in any data set
NEAR_THE_FLOOR = 1.01  # a loss up to this factor times its floor counts as near the floor
ABOVE_FLOOR = replace(
    TRAIN_LOSS,
    title="Loss above its floor, train",
    meaning="Cross-entropy minus its minimum for the scale of the head, which is 0 for nn.Linear.",
    at_collapse="0",
    log=True,
    reference=None,
)
"""The train loss minus its floor, which makes heads with different floors comparable."""

FACTS = ("experiment", "head", "seed", "state", "num_classes", "feature_dim", "loss_lower_bound")
NEEDED = (*FACTS, "epoch", "seconds")
COLUMNS = {f"{quantity.split}_{quantity.name}": quantity for quantity in QUANTITIES}


@dataclass(frozen=True)
class Experiment:
    """All runs with the same experiment name."""

    name: str
    runs: tuple[Run, ...]

    @property
    def heads(self) -> list[str]:
        """The heads that ran, in display order."""
        return in_order(run.head for run in self.runs)

    @property
    def unconstrained(self) -> bool:
        """Whether features are free variables, as in the paper's UFM."""
        return self.name.startswith("ufm") or any(run.configuration.get("backbone") == "unconstrained" for run in self.runs)

    @property
    def has_test(self) -> bool:
        """Whether any run has test samples."""
        return any(run.num_test > 0 for run in self.runs)

    def of(self, head: str) -> list[Run]:
        """Returns the runs of a head that did not fail, sorted by seed."""
        return [run for run in self.all_of(head) if run.state != "failed"]

    def all_of(self, head: str) -> list[Run]:
        """Returns all runs of a head, sorted by seed."""
        return sorted((run for run in self.runs if run.head == head), key=lambda run: run.seed)

    def references(self, quantity: Quantity) -> list[float]:
        """Returns the theoretical values of a quantity: none or one, or several if runs differ in scale or sizes."""
        return theory(quantity, ((run.feature_dim, run.num_classes, run.loss_lower_bound) for run in self.runs))

    def curves(self, quantity: Quantity) -> dict[str, DataFrame]:
        """Returns the curve of a quantity over epochs, for each head that recorded it."""
        runs = {head: self.of(head) for head in self.heads}
        return curves_over_seeds({head: {run.seed: measured(run, quantity) for run in found} for head, found in runs.items()})

    def margins(self, split: Split) -> dict[str, DataFrame]:
        """Returns the curve of sorted margins, for each head that recorded them."""
        return curves_over_seeds({head: margins_by_seed(self.of(head), split) for head in self.heads})


def by_experiment(runs: Iterable[Run]) -> list[Experiment]:
    """Returns runs grouped by experiment, sorted by name; unconstrained features come last, sorted by number of classes."""
    ordered = sorted(runs, key=lambda run: run.experiment)
    experiments = [Experiment(name, tuple(group)) for name, group in groupby(ordered, key=lambda run: run.experiment)]
    return sorted(experiments, key=lambda e: (e.unconstrained, e.runs[0].num_classes if e.unconstrained else 0, e.name))


def theory(quantity: Quantity, sizes: Iterable[tuple[int, int, float | None]]) -> list[float]:
    """Returns the theoretical values of a quantity for runs with these (feature_dim, num_classes, lower bound of the loss)."""
    if quantity.reference is None:
        return []
    is_bound = quantity.reference == "loss_lower_bound"
    values = {bound if is_bound else best_margin(feature_dim, num_classes) for feature_dim, num_classes, bound in sizes}
    return sorted(value for value in values if value is not None and math.isfinite(value))


class Spread(NamedTuple):
    """Median, minimum and maximum over seeds, in display units, and the epochs of the values."""

    median: float
    low: float
    high: float
    seeds: int
    epochs: tuple[int, ...] = ()


def spread(values: Sequence[float], epochs: Iterable[int] = ()) -> Spread:
    """Returns the median and range of one or more values; infinity means an event that never happened."""
    return Spread(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values), tuple(epochs))


def measured(run: Run, quantity: Quantity) -> Series:
    """Returns the recorded values of a quantity, by epoch, in display units."""
    if quantity is ABOVE_FLOOR:
        return measured(run, TRAIN_LOSS) - floor(run)
    return Series(quantity.factor * run.epochs.of(quantity.split, quantity.name), run.epochs.numbers).dropna()


def first_epoch(reached: Series) -> float:
    """Returns the first epoch at which a condition holds; infinity if it never does."""
    return float(reached.idxmax()) if reached.any() else math.inf


def at_epoch(runs: Sequence[Run], quantity: Quantity, epoch: int | None = None) -> Spread | None:
    """Returns the median and range over runs of the last value recorded up to `epoch`; None if no run recorded one.

    If `epoch` is None, the last value of each run counts.
    """
    ends = (measured(run, quantity).loc[:epoch].tail(1) for run in runs)
    found = [(float(end.iat[0]), int(end.index[0])) for end in ends if len(end)]
    return spread([value for value, _ in found], [last for _, last in found]) if found else None


def curves_over_seeds(values: Mapping[str, Mapping[int, Series]]) -> dict[str, DataFrame]:
    """Returns columns median, low, high and seeds for each head, from its values by seed; heads without values are left out."""
    curves = {}
    for head, by_seed in values.items():
        known = DataFrame(by_seed).dropna(how="all").sort_index()
        if len(known):
            ends = {"median": known.median(axis=1), "low": known.min(axis=1), "high": known.max(axis=1)}
            curves[head] = DataFrame({**ends, "seeds": known.count(axis=1)})
    return curves


def margins_by_seed(runs: Sequence[Run], split: Split) -> dict[int, Series]:
    """Returns the sorted margins of each run that recorded them, against the share of samples in percent.

    With m_1 <= ... <= m_N, the margin at the share q is the one at position 1 + q (N-1), interpolated between neighbors.
    """
    margins = {run.seed: run.margins[split] for run in runs if split in run.margins}
    shares = np.linspace(0, 1, min(MAX_MARGINS, max([2, *map(len, margins.values())])))
    values = {seed: np.interp(shares * (len(own) - 1), np.arange(len(own)), own) for seed, own in margins.items()}
    return {seed: Series(own, 100 * shares) for seed, own in values.items()}


class Reached(NamedTuple):
    """How many runs reached a train accuracy, and when (infinity for never); `seconds` is None if a run has no times."""

    reached: int
    epochs: Spread
    seconds: Spread | None


def when_reached(runs: Sequence[Run], level: int) -> Reached | None:
    """Returns when runs first measured a train accuracy of `level` percent; None if no run recorded train accuracy."""
    epochs, seconds = [], []
    for run in runs:
        accuracies = measured(run, TRAIN_TOP1)
        if accuracies.empty:
            continue
        elapsed = np.cumsum(run.epochs.seconds)
        first = first_epoch(accuracies >= level - TOLERANCE)
        never = math.nan if np.isnan(elapsed).all() else math.inf
        epochs.append(first)
        seconds.append(never if math.isinf(first) else float(elapsed[int(first) - 1]))
    if not epochs:
        return None
    return Reached(sum(map(math.isfinite, epochs)), spread(epochs), None if np.isnan(seconds).any() else spread(seconds))


@dataclass(frozen=True)
class Outcome:
    """The result that compares heads: its title, the quantity of the corresponding curve, and values by head and seed."""

    title: str
    quantity: Quantity
    percent: bool
    lower_is_better: bool
    values: Mapping[str, Mapping[int, float]]

    @property
    def unit(self) -> str:
        """The unit of differences between outcomes; empty for losses."""
        return "points" if self.percent else "epochs" if self.title.startswith("epochs") else ""

    @property
    def spreads(self) -> dict[str, Spread]:
        """Median and range over seeds, by head."""
        return {head: spread(list(by_seed.values())) for head, by_seed in self.values.items()}


def outcome(experiment: Experiment) -> Outcome:
    """Returns the result that compares heads: test accuracy at the end of training or, without test samples, one based on the loss.

    If the loss of every run has a floor that a simplex ETF attains, and the feature space has room for a simplex ETF, the result is
    the number of epochs until the loss is at most 1.01 times the floor. Otherwise, the result is the final loss above the floor.
    """
    runs = [run for head in experiment.heads for run in experiment.of(head)]
    values: dict[str, dict[int, float]] = {}
    if not experiment.has_test and all(run.loss_lower_bound and run.feature_dim >= run.num_classes - 1 for run in runs):
        for run in runs:
            near = measured(run, TRAIN_LOSS) <= NEAR_THE_FLOOR * floor(run)
            values.setdefault(run.head, {})[run.seed] = first_epoch(near)
        return Outcome(f"epochs to {NEAR_THE_FLOOR} times the least loss", ABOVE_FLOOR, False, True, values)
    quantity, last = TEST_TOP1 if experiment.has_test else ABOVE_FLOOR, set()
    for run in runs:
        curve = measured(run, quantity)
        if len(curve):
            values.setdefault(run.head, {})[run.seed] = float(curve.iat[-1])
            last.add(int(curve.index[-1]))
    after = span([*(last or [0])])
    after = f"after {after} {'epoch' if after == '1' else 'epochs'}"
    title = f"test accuracy {after}, %" if experiment.has_test else f"train loss above its floor {after}"
    return Outcome(title, quantity, experiment.has_test, not experiment.has_test, values)


def floor(run: Run) -> float:
    """Returns the lowest cross-entropy that the head can reach; 0 for heads whose logits are unbounded."""
    return run.loss_lower_bound or 0.0


def seconds_of(run: Run) -> float:
    """Returns the training time of a run in seconds; NaN if it was not recorded."""
    return float(run.epochs.seconds.sum())


def span(values: Sequence[int]) -> str:
    """Returns the range of the values as text, such as `30 to 50`, or `30` if they are equal."""
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def load_runs(folder: str | Path) -> DataFrame:
    """Returns all runs below a folder as a DataFrame with one row per run and epoch.

    Columns are `experiment`, `head`, `seed`, `state` ("finished", "unfinished" or "failed"), `num_classes`, `feature_dim`,
    `loss_lower_bound`, `epoch`, and `seconds` of training; `train_...` and `test_...` for every recorded metric, measured in eval
    mode (`train_nc1`, `test_top1`), NaN in epochs without a measurement; and `configuration_...` for the settings. A run without
    a finished epoch has no rows.

    Args:
        folder: the output folder of `guided-collapse train` or `compare`, or any folder above it.

    Raises:
        ValueError: if there is no readable run.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from guided_collapse.experiments import Configuration, Placement, compare
        >>> from guided_collapse.experiments.report import load_runs
        >>> sizes = {"num_classes": 4, "feature_dim": 8, "num_samples": 40, "batch_size": 40}
        >>> short = Configuration("short", data="unconstrained", backbone="unconstrained", epochs=2, **sizes)
        >>> with TemporaryDirectory() as folder:
        ...     _ = compare(short, ["fixed-etf"], [0], Placement(out=Path(folder), quiet=True))
        ...     runs = load_runs(folder)
        >>> runs[["experiment", "head", "epoch"]].values.tolist()
        [['short', 'fixed-etf', 1], ['short', 'fixed-etf', 2]]
    """
    rows = []
    for run in read_records([Path(folder)]).runs:
        facts = {name: getattr(run, name) for name in FACTS}
        asked = {f"configuration_{name}": value for name, value in run.configuration.items() if name not in FACTS}
        for record in read_epoch_records(run.folder):
            measured = {f"{split}_{name}": value for split in SPLITS for name, value in record.measured(split).items()}
            rows.append({**facts, "epoch": record.epoch, "seconds": record.seconds, **measured, **asked})
    found = {name for row in rows for name in row} - set(NEEDED)
    shown = [column for column in COLUMNS if column in found]
    others = sorted(found - set(shown), key=lambda name: (name.startswith("configuration_"), name))
    return DataFrame(rows, columns=[*NEEDED, *shown, *others])
