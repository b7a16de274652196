"""Every record below some folders."""

import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from guided_collapse.experiments.records.contents import read_object
from guided_collapse.experiments.records.fields import Kind, RecordError, told_of
from guided_collapse.experiments.records.run import Run, State, read_run
from guided_collapse.experiments.records.schema import CONFIG, COST, SEARCH, TRIALS, CostRecord, SearchRecord
from guided_collapse.experiments.records.text import shortened

# Of two records of the same seed the better one is kept.
RANK: dict[State, int] = {"finished": 0, "unfinished": 1, "failed": 2}


@dataclass(frozen=True)
class Records:
    """Runs, costs and searches, and in words what was found and could not be used."""

    runs: tuple[Run, ...]
    costs: tuple[CostRecord, ...]
    searches: tuple[SearchRecord, ...]
    skipped: tuple[str, ...]


def read_records(paths: Sequence[Path]) -> Records:
    """All runs, costs and searches below the paths, each folder once; the trials of a search are what its record says of them.

    What cannot be used is named, with a warning, and left out.

    Raises:
        ValueError: if there are no paths, a path does not exist, or nothing is left.
    """
    if not paths:
        raise ValueError("there must be at least one folder with runs; got none.")
    for path in paths:
        if not path.exists():
            raise ValueError(f"runs are read from folders; there is no {path}.")
    runs: list[Run] = []
    costs: list[CostRecord] = []
    searches: list[SearchRecord] = []
    skipped: list[str] = []
    skipped += [f"{path}: it is no folder" for path in paths if not path.is_dir()]
    searched = _find(paths, SEARCH, skipped)
    of_trials = {(file.parent / TRIALS).resolve() for file in searched}
    for file in _find(paths, CONFIG, skipped):
        if of_trials.intersection(file.parent.resolve().parents):
            continue
        try:
            runs.append(read_run(file.parent))
            skipped += [f"{file.parent}: {problem}" for problem in runs[-1].problems]
        except RecordError as error:
            skipped.append(f"{file.parent}: {error}")
    for file in _find(paths, COST, skipped):
        try:
            costs.append(read_cost(file))
        except RecordError as error:
            skipped.append(f"{file.parent}: {error}")
    for file in searched:
        try:
            searches.append(read_record(file, SearchRecord))
        except RecordError as error:
            skipped.append(f"{file.parent}: {error}")
    kept = _one_per_seed(runs, skipped)
    # Names of folders may hold any bytes, and what a record holds instead of a number may be long.
    skipped = [shortened(message.encode("utf-8", "replace").decode("utf-8")) for message in dict.fromkeys(skipped)]
    for message in skipped:
        warnings.warn(f"left out: {message}", stacklevel=3)
    if not kept and not costs:
        named = ", ".join(map(str, paths))
        reason = f"{len(skipped)} could not be used, the first is {skipped[0]}" if skipped else "none was found"
        raise ValueError(f"there must be at least one run (a folder with a {CONFIG}) below {named}; {reason}.")
    return Records(tuple(kept), tuple(costs), tuple(searches), tuple(skipped))


def read_cost(path: Path) -> CostRecord:
    """The costs in a file; refused as `read_record` does."""
    return read_record(path, CostRecord)


def read_record(path: Path, kind: type[Kind]) -> Kind:
    """The record of that kind in a file.

    Raises:
        RecordError: if the file is no such record.
    """
    content = read_object(path)
    with told_of(path.name):
        return kind.from_json(content)


def _find(paths: Iterable[Path], name: str, skipped: list[str]) -> list[Path]:
    """Everything of that name below the paths, sorted in each, every one once; folders that cannot be read are skipped."""
    found: dict[Path, Path] = {}

    def skip(error: OSError) -> None:
        skipped.append(f"{error.filename}: {error.strerror}")

    for path in filter(Path.is_dir, paths):
        folders = [Path(folder) for folder, below, files in os.walk(path, onerror=skip) if name in below or name in files]
        for folder in sorted(folders):
            found.setdefault(folder.resolve(), folder / name)
    return list(found.values())


def _one_per_seed(runs: Sequence[Run], skipped: list[str]) -> list[Run]:
    kept: dict[tuple[str, str, int], Run] = {}
    for run in sorted(runs, key=lambda run: RANK[run.state]):
        first = kept.setdefault((run.experiment, run.head, run.seed), run)
        if first is not run:
            skipped.append(f"{run.folder}: the same experiment, head and seed as {first.folder}, which is shown")
    return sorted(kept.values(), key=lambda run: (run.experiment, run.head, run.seed))
