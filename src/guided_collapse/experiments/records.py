"""Reads the records of runs and searches from folders and zip archives, without torch."""

import io
import os
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass as checked_dataclass

from guided_collapse.experiments.errors import DamageError
from guided_collapse.experiments.run import (
    CONFIG,
    FAILURE,
    MARGINS,
    OF_A_RUN,
    STRICT,
    TRACE,
    EpochRecord,
    Numbers,
    Place,
    RunFacts,
    State,
    read_epoch_records,
    read_record,
    run_status,
)
from guided_collapse.metrics import declared as metrics
from guided_collapse.metrics.declared import SPLITS, MetricDeclaration, Reference, Split

SEARCH = "search.json"
TRIALS = "trials"  # the folder that holds the trials of a search, next to `search.json`

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quantity:
    """A metric of one split, as figures and tables show it."""

    split: Split  # training or test samples
    name: str  # in records
    title: str  # on charts
    meaning: str  # what it measures
    formula: str
    at_collapse: str  # its value at collapse
    percent: bool  # True for fractions shown in percent
    log: bool  # True if its axis is logarithmic by default
    reference: Reference | None  # the theoretical value that it is compared with
    occasional: bool  # True if only some runs record it

    @property
    def factor(self) -> float:
        """The factor that converts recorded values to displayed ones."""
        return 100.0 if self.percent else 1.0


def _quantity(metric: MetricDeclaration, split: Split = "train") -> Quantity:
    return Quantity(
        split=split,
        name=metric.name,
        title=metric.charts[split],
        meaning=metric.meaning,
        formula=metric.formula,
        at_collapse=metric.at_collapse,
        percent=metric.percent,
        log=metric.log,
        reference=metric.reference if split == "train" else None,
        occasional=metric.occasional,
    )


TRAIN_LOSS, TRAIN_TOP1 = _quantity(metrics.LOSS), _quantity(metrics.TOP1)
TEST_LOSS, TEST_TOP1 = _quantity(metrics.LOSS, "test"), _quantity(metrics.TOP1, "test")
MARGIN, EQUINORM = _quantity(metrics.MARGIN), _quantity(metrics.EQUINORM)
NC1, NC1_NORMALIZED = _quantity(metrics.NC1), _quantity(metrics.NC1_NORMALIZED)
NC2, NC2_MEANS, NC3 = _quantity(metrics.NC2), _quantity(metrics.NC2_MEANS), _quantity(metrics.NC3)
NC4, TEST_NC4 = _quantity(metrics.NC4), _quantity(metrics.NC4, "test")
_FIRST = (TRAIN_LOSS, TRAIN_TOP1, TEST_TOP1, TEST_LOSS, MARGIN, NC1, NC1_NORMALIZED, NC2, NC2_MEANS, NC3, NC4, TEST_NC4, EQUINORM)
_ALL = (_quantity(metric, split) for metric in metrics.METRICS.values() for split in metric.charts)
QUANTITIES = (*_FIRST, *(quantity for quantity in _ALL if quantity not in _FIRST))
"""All quantities with curves over epochs, in display order."""


@dataclass(frozen=True, eq=False)
class Epochs:
    """The measurements of a run in eval mode, as arrays over epochs."""

    numbers: Integers  # (num_epochs,), 1 ... num_epochs
    seconds: Floats  # (num_epochs,), training time of each epoch; NaN if missing
    values: Mapping[tuple[Split, str], Floats]  # by split and name, each (num_epochs,); NaN in epochs without a measurement

    @property
    def last(self) -> int:
        """The last finished epoch; 0 before the first."""
        return len(self.numbers)

    def of(self, split: Split, name: str) -> Floats:
        """Returns the values of one quantity, (num_epochs,)."""
        return self.values.get((split, name), np.full(len(self.numbers), np.nan))


@dataclass(frozen=True, eq=False)
class Trace:
    """The contents of `trace.npz`: the points of the animation, in the coordinates that `TraceRecorder` describes."""

    epochs: Integers  # (num_moments,), the epochs that were recorded
    classes: Integers  # (num_shown,), indices of the classes
    weights: Floats  # (num_moments, num_shown, 3), the classifier's rows
    means: Floats  # (num_moments, num_shown, 3), the class means
    samples: Floats  # (num_moments, num_samples, 3), features; the samples do not change from epoch to epoch
    sample_labels: Integers  # (num_samples,), the position of each sample's class in `classes`


@dataclass(frozen=True, kw_only=True, eq=False)
class Run(RunFacts):
    """The facts and measurements of a run. Medians leave out failed runs; reports show their errors instead."""

    folder: Place
    state: State
    error: str | None  # why the run failed; None if it did not
    epochs: Epochs
    margins: Mapping[Split, Floats]  # cosine margins by split, sorted; empty for unfinished runs
    trace: Trace | None  # None for unfinished runs and for runs that recorded no trace


@checked_dataclass(frozen=True, config=STRICT)
class Trial:
    """The result of one setting of a head on the validation images, at the end of training."""

    head: str  # the name of the head
    settings: Mapping[str, Any]  # values of the searched fields that affect the head, by name
    seed: int  # the seed of the trial
    measured: Numbers | None  # metrics by name, as in the record of an epoch; None if the run diverged


@checked_dataclass(frozen=True, config=STRICT)
class SearchRecord:
    """The contents of `search.json`: the plan of a search for the best settings of each head, its trials, and its choice.

    The file is written before the first trial, and again before the final runs.
    """

    experiment: str  # the name of the experiment
    configuration: Mapping[str, Any]  # the settings that all runs share, as plain values
    heads: tuple[str, ...]  # the names of the heads
    grid: Mapping[str, Any]  # the values to try for each searched field
    validation_fraction: float  # the fraction of the training images that trials are tested on
    trial_epochs: int  # the length of each trial
    trial_seeds: tuple[int, ...]  # every setting is tried with each of these seeds
    seeds: tuple[int, ...]  # the seeds of the final runs; no trial uses them
    rule: str  # how a setting is chosen, as text
    planned: str  # when the search was planned, in ISO 8601
    trials: tuple[Trial, ...] = ()  # the results of all trials; empty until they are done
    choice: Mapping[str, Any] = field(default_factory=dict)  # the settings chosen for each head; empty until all trials are done
    decided: str | None = None  # when the choice was made, in ISO 8601
    kind: Literal["search"] = "search"  # distinguishes searches from other records
    format: Literal[2] = 2  # format version; readers reject any other

    @property
    def plan(self) -> dict[str, Any]:
        """The fields that are fixed before the first trial, without the time of planning."""
        later = ("planned", "trials", "choice", "decided")
        return {name: value for name, value in asdict(self).items() if name not in later}


@dataclass(frozen=True)
class Records:
    """Runs, searches, and messages about records that could not be used."""

    runs: tuple[Run, ...]
    searches: tuple[SearchRecord, ...]
    skipped: tuple[str, ...]


def read_records(paths: Sequence[Path]) -> Records:
    """Returns all runs and searches in folders and zip archives, at any depth, without the trials of searches.

    Of several runs with the same experiment, head and seed, only one is returned, if possible a finished one. The others, and
    damaged or altered records, are left out with a warning. Raises a ValueError if a path does not exist or no run remains.
    """
    skipped: list[str] = []
    found: dict[str, tuple[Place, frozenset[str]]] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"runs must be in existing folders or zip archives; {path} does not exist. Check the path.")
        for place, names in _folders_below(path, skipped):
            found.setdefault(str(place.resolve() if isinstance(place, Path) else place), (place, names))
    trials = [f"{name.rstrip('/')}/{TRIALS}/" for name, (_, names) in found.items() if SEARCH in names]
    runs: list[Run] = []
    searches: list[SearchRecord] = []
    for name, (place, names) in found.items():
        if any(name.startswith(folder) for folder in trials):
            continue
        try:
            if SEARCH in names:
                searches.append(read_record(place / SEARCH, SearchRecord))
            if not names.isdisjoint((*OF_A_RUN, FAILURE)):
                runs.append(read_run(place))
        except ValueError as error:
            skipped.append(one_line(f"{place}: {error}"))
    kept: dict[tuple[str, str, int], Run] = {}
    better: Sequence[State] = ("finished", "unfinished", "failed")
    for run in sorted(runs, key=lambda run: better.index(run.state)):
        first = kept.setdefault((run.experiment, run.head, run.seed), run)
        if first is not run:
            skipped.append(f"{run.folder}: the same experiment, head and seed as {first.folder}, which is used")
    for message in skipped:
        warnings.warn(f"left out: {message}", stacklevel=3)
    if not kept:
        reason = f"{len(skipped)} could not be used, for example {skipped[0].rstrip('.')}" if skipped else "found none"
        raise ValueError(f"there must be at least one run in {', '.join(map(str, paths))}; {reason}.")
    ordered = sorted(kept.values(), key=lambda run: (run.experiment, run.head, run.seed))
    return Records(tuple(ordered), tuple(searches), tuple(skipped))


def _folders_below(path: Path, skipped: list[str]) -> list[tuple[Place, frozenset[str]]]:
    """Returns a folder and all folders below it, or all folders in a zip archive, in order, each with the names of its files."""
    if not path.is_dir():
        try:
            archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            skipped.append(f"{path}: it is neither a folder nor a zip archive ({error})")
            return []
        inside: dict[str, set[str]] = {}
        for folder, _, name in (entry.rpartition("/") for entry in sorted(archive.namelist())):
            inside.setdefault(folder, set()).add(name)
        root = zipfile.Path(archive)
        return [(root / f"{folder}/" if folder else root, frozenset(names)) for folder, names in inside.items()]
    found: list[tuple[Place, frozenset[str]]] = []
    for folder, below, names in os.walk(path, onerror=lambda error: skipped.append(f"{error.filename}: {error.strerror}")):
        below.sort()
        found.append((Path(folder), frozenset(names)))
        for name in sorted(names):
            if name.endswith(".zip"):
                found += _folders_below(Path(folder, name), skipped)
    return found


def read_run(folder: Place) -> Run:
    """Returns the run in a folder, without its model. Raises a DamageError if a file of the run is damaged or altered."""
    status = run_status(folder)
    if status.facts is None or status.state == "damaged":
        raise DamageError(status.reason or f"{CONFIG} is damaged")
    files = status.facts.finished.files if status.facts.finished else {}
    return Run(
        **{each.name: getattr(status.facts, each.name) for each in fields(RunFacts)},
        folder=folder,
        state=status.state,
        error=status.reason,
        epochs=in_columns(read_epoch_records(folder)),
        margins=read_margins(folder / MARGINS) if MARGINS in files else {},
        trace=Trace(**_read_arrays(folder / TRACE)) if TRACE in files else None,
    )


def in_columns(records: Sequence[EpochRecord]) -> Epochs:
    """Returns epoch records as arrays over epochs."""
    seconds = np.array([found.seconds for found in records], dtype=np.float64)  # None becomes NaN
    values = {}
    for split, name in ((quantity.split, quantity.name) for quantity in QUANTITIES):
        column = np.array([found.measured(split).get(name) for found in records], dtype=np.float64)
        if not np.isnan(column).all():
            values[split, name] = column
    return Epochs(np.arange(1, len(records) + 1), seconds, values)


def read_margins(file: Place) -> dict[Split, Floats]:
    """Returns the cosine margins in a file by split, sorted."""
    arrays = _read_arrays(file)
    return {split: np.sort(arrays[split]) for split in SPLITS if split in arrays}


def _read_arrays(file: Place) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays in a file as float64 or int64."""
    with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:  # a pickle could run code
        return {name: array.astype(np.float64 if array.dtype.kind == "f" else np.int64) for name, array in arrays.items()}


def setting_text(settings: Mapping[str, Any]) -> str:
    """Returns values of searched fields as text, such as "learning_rate=0.1,scale=5"; "as-it-is" if there are none."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items()) or "as-it-is"


def one_line(text: str) -> str:
    """Returns text on one line, stripped.

    Each run of whitespace, control characters and bidirectional marks becomes a single space.
    """
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]+", " ", text).strip()


def short_commit(commit: str) -> str:
    """Returns text in which every full commit hash is shortened to seven digits, as git shows it; a plus after it is kept."""
    return re.sub(r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", commit)


def shortened(text: str, most: int = 500) -> str:
    """Returns text on one line; text of more than `most` characters is truncated and ends in an ellipsis."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[:most]} …"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines of text, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
