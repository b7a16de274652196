"""One run, as its folder tells it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guided_collapse.experiments.records.arrays import read_margins, read_trace
from guided_collapse.experiments.records.contents import read_bytes, read_object
from guided_collapse.experiments.records.declared.quantities import QUANTITIES
from guided_collapse.experiments.records.epochs import Epochs, read_epochs
from guided_collapse.experiments.records.fields import RecordError, told_of
from guided_collapse.experiments.records.files import checksum
from guided_collapse.experiments.records.schema import (
    CONFIG,
    FAILURE,
    MARGINS,
    METRICS,
    MODEL,
    SPLITS,
    TRACE,
    Failure,
    Floats,
    RunFacts,
    Split,
    Trace,
)
from guided_collapse.experiments.records.seal import seal_in_header

State = Literal["finished", "unfinished", "failed"]
NAMES = {split: frozenset(quantity.name for quantity in QUANTITIES if quantity.split == split) for split in SPLITS}


@dataclass(frozen=True, kw_only=True, eq=False)
class Run(RunFacts):
    """The facts of a run, and what was measured.

    A failed run takes no part in any median; its error is shown instead.
    """

    folder: Path
    state: State
    error: str | None
    """Why it failed."""
    epochs: Epochs
    margins: Mapping[Split, Floats]
    """Sorted, by split."""
    trace: Trace | None
    problems: tuple[str, ...]
    """What in the folder could not be used, though the run can be."""


def read_run(folder: Path) -> Run:
    """The run in a folder with a `config.json`; no model is loaded.

    Raises:
        RecordError: if the folder holds no run of this package, or its measurements cannot be read.
    """
    record = read_object(folder / CONFIG)
    with told_of(CONFIG):
        facts = RunFacts.from_json(record)
    changed = _changed_since_the_end(folder, record, facts)
    if METRICS in changed:
        raise RecordError(f"{METRICS} is not as it was when the run finished")
    problems: list[str] = []
    margins: Mapping[Split, Floats] = {}
    trace = None
    try:
        margins = read_margins(folder / MARGINS)
    except RecordError as problem:
        problems.append(str(problem))
    try:
        trace = read_trace(folder / TRACE)
    except RecordError as problem:
        problems.append(str(problem))
    if MARGINS in changed:
        margins = {}
    if TRACE in changed:
        trace = None
    problems += [f"{name} is not as it was when the run finished" for name in changed]
    epochs = read_epochs(folder, NAMES)
    _check_shares(epochs)
    state, error = _state(folder, facts, epochs, margins)
    if state == "unfinished" and (folder / MODEL).exists():
        done = f"{len(epochs.numbers)} of {facts.planned}"
        problems.append(f"the epochs after {done}, which {METRICS} lacks though there is a {MODEL}; the run counts as unfinished")
    return Run(
        **{name: getattr(facts, name) for name in RunFacts.FIELDS},
        folder=folder,
        state=state,
        error=error,
        epochs=epochs,
        margins=margins,
        trace=trace,
        problems=tuple(problems),
    )


def _changed_since_the_end(folder: Path, record: Mapping[str, Any], facts: RunFacts) -> list[str]:
    """The files that are not as the finished model has sealed them; none for a run that is being made longer, or has no seal.

    Raises:
        RecordError: if the model is of another run.
    """
    seal = seal_in_header(folder / MODEL)
    if seal is None:
        return []
    with told_of(MODEL):
        finished = RunFacts.from_json(seal.facts).configuration
    if finished == facts.configuration:
        contents = {name: read_bytes(folder / name) for name in seal.files}
        changed = [name for name, content in contents.items() if content is None or checksum(content) != seal.files[name]]
        return changed if record == seal.facts else [*changed, CONFIG]
    if not facts.differs_in_length_from(finished):
        raise RecordError(f"{CONFIG} and {MODEL} are of two runs")
    return []


def _check_shares(epochs: Epochs) -> None:
    for quantity in QUANTITIES:
        values = epochs.of(quantity.split, quantity.name)
        if quantity.percent and ((values < 0) | (values > 1)).any():
            raise RecordError(f"{quantity.name} of {quantity.split} must be from 0 to 1 in every epoch of {METRICS}")


def _state(folder: Path, facts: RunFacts, epochs: Epochs, margins: Mapping[Split, Floats]) -> tuple[State, str | None]:
    """How a run ended; records of a finished run may be kept without its model, but not without an epoch."""
    planned, has_model = facts.planned, (folder / MODEL).exists()
    finished = has_model if planned is None else (has_model or bool(margins)) and len(epochs.numbers) >= planned
    if finished:
        return "finished", None
    if not (folder / FAILURE).exists():
        return "unfinished", None
    try:
        return "failed", Failure.from_json(read_object(folder / FAILURE)).error
    except RecordError as error:
        return "failed", f"unknown: {error}"
