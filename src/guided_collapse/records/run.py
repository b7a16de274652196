"""One run, as its folder tells it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guided_collapse.records.arrays import Trace, read_margins, read_trace
from guided_collapse.records.contents import read_bytes, read_object
from guided_collapse.records.epochs import SPLITS, Epochs, Floats, Split, read_epochs
from guided_collapse.records.fields import RecordError, number_field, object_field, text_field, told_of, whole_field
from guided_collapse.records.files import checksum
from guided_collapse.records.names import CONFIG, FAILURE, FORMAT, MARGINS, METRICS, MODEL, TRACE
from guided_collapse.records.quantities import QUANTITIES
from guided_collapse.records.seal import seal_in_header

State = Literal["finished", "unfinished", "failed"]
NAMES = {split: frozenset(quantity.name for quantity in QUANTITIES if quantity.split == split) for split in SPLITS}


@dataclass(frozen=True, eq=False)
class Run:
    """A run's configuration, what it ran on and what was measured.

    A failed run takes no part in any median; its error is shown instead.
    """

    folder: Path
    experiment: str
    head: str
    seed: int
    state: State
    error: str | None
    """Why it failed."""
    configuration: Mapping[str, Any]
    protocol: str
    protocol_differences: tuple[str, ...]
    num_classes: int
    feature_dim: int
    num_train: int
    num_test: int
    global_batch: int
    loss_lower_bound: float | None
    versions: Mapping[str, Any]
    commit: str | None
    hardware: Mapping[str, Any]
    started: str
    epochs: Epochs
    margins: Mapping[Split, Floats]
    """Sorted, by split."""
    trace: Trace | None
    problems: tuple[str, ...]
    """What in the folder could not be used, though the run can be."""

    @property
    def planned(self) -> int | None:
        """How many epochs the run is to have."""
        return planned_epochs(self.configuration)


def read_run(folder: Path) -> Run:
    """The run in a folder with a `config.json`; no model is loaded.

    Raises:
        RecordError: if the folder holds no run of this package, or its measurements cannot be read.
    """
    record = read_object(folder / CONFIG)
    if record.get("format") != FORMAT or "experiment" not in record:
        raise RecordError(f"{CONFIG} must be the record of a run, with format {FORMAT}; got format {record.get('format')!r}")
    differences = record.get("protocol_differences", [])
    if not isinstance(differences, list):
        raise RecordError(f"protocol_differences of {CONFIG} must be a list; got {differences!r}")
    problems: list[str] = []
    margins: Mapping[Split, Floats] = {}
    trace = None
    with told_of(CONFIG):
        configuration = object_field(record, "configuration")
    changed = _changed_since_the_end(folder, record, configuration)
    if METRICS in changed:
        raise RecordError(f"{METRICS} is not as it was when the run finished")
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
    epochs = read_epochs(folder / METRICS, NAMES)
    _check_shares(epochs)
    state, error = _state(folder, configuration, epochs, margins)
    if state == "unfinished" and (folder / MODEL).exists():
        done = f"{len(epochs.numbers)} of {planned_epochs(configuration)}"
        problems.append(f"the epochs after {done}, which {METRICS} lacks though there is a {MODEL}; the run counts as unfinished")
    with told_of(CONFIG):
        return Run(
            folder=folder,
            experiment=text_field(record, "experiment"),
            head=text_field(record, "head"),
            seed=whole_field(record, "seed"),
            state=state,
            error=error,
            configuration=configuration,
            protocol=text_field(record, "protocol"),
            protocol_differences=tuple(str(difference) for difference in differences),
            num_classes=whole_field(record, "num_classes", least=2),
            feature_dim=whole_field(record, "feature_dim", least=1),
            num_train=whole_field(record, "num_train"),
            num_test=whole_field(record, "num_test"),
            global_batch=whole_field(record, "global_batch"),
            loss_lower_bound=number_field(record, "loss_lower_bound"),
            versions=object_field(record, "versions"),
            commit=None if record.get("commit") is None else text_field(record, "commit"),
            hardware=object_field(record, "hardware"),
            started=text_field(record, "started"),
            epochs=epochs,
            margins=margins,
            trace=trace,
            problems=tuple(problems),
        )


def _changed_since_the_end(folder: Path, record: Mapping[str, Any], configuration: Mapping[str, Any]) -> list[str]:
    """The files that are not as the finished model has sealed them; none for a run that is being made longer, or has no seal.

    Raises:
        RecordError: if the model is of another run.
    """
    seal = seal_in_header(folder / MODEL)
    if seal is None:
        return []
    finished = object_field(seal.facts, "configuration")
    if finished == configuration:
        contents = {name: read_bytes(folder / name) for name in seal.files}
        changed = [name for name, content in contents.items() if content is None or checksum(content) != seal.files[name]]
        return changed if record == seal.facts else [*changed, CONFIG]
    if {**finished, "epochs": None} != {**configuration, "epochs": None}:
        raise RecordError(f"{CONFIG} and {MODEL} are of two runs")
    return []


def planned_epochs(configuration: Mapping[str, Any]) -> int | None:
    """How many epochs a run is to have; None if its configuration does not say."""
    planned = configuration.get("epochs")
    return planned if isinstance(planned, int) and not isinstance(planned, bool) else None


def _check_shares(epochs: Epochs) -> None:
    for quantity in QUANTITIES:
        values = epochs.of(quantity.split, quantity.name)
        if quantity.percent and ((values < 0) | (values > 1)).any():
            raise RecordError(f"{quantity.name} of {quantity.split} must be from 0 to 1 in every epoch of {METRICS}")


def _state(
    folder: Path, configuration: Mapping[str, Any], epochs: Epochs, margins: Mapping[Split, Floats]
) -> tuple[State, str | None]:
    """How a run ended; records of a finished run may be kept without its model, but not without an epoch."""
    planned, has_model = planned_epochs(configuration), (folder / MODEL).exists()
    finished = has_model if planned is None else (has_model or bool(margins)) and len(epochs.numbers) >= planned
    if finished:
        return "finished", None
    if not (folder / FAILURE).exists():
        return "unfinished", None
    try:
        return "failed", text_field(read_object(folder / FAILURE), "error")
    except RecordError as error:
        return "failed", f"unknown: {error}"
