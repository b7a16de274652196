"""One run, as its folder tells it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guided_collapse.report.arrays import Trace, read_margins, read_trace
from guided_collapse.report.contents import read_object
from guided_collapse.report.epochs import SPLITS, Epochs, Floats, Split, read_epochs
from guided_collapse.report.fields import RecordError, number_field, object_field, text_field, told_of, whole_field
from guided_collapse.report.quantities import QUANTITIES

State = Literal["finished", "unfinished", "failed"]
FORMAT = 1
MODEL = "model.safetensors"
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
    record = read_object(folder / "config.json")
    if record.get("format") != FORMAT or "experiment" not in record:
        raise RecordError(f"config.json must be the record of a run, with format {FORMAT}; got format {record.get('format')!r}")
    differences = record.get("protocol_differences", [])
    if not isinstance(differences, list):
        raise RecordError(f"protocol_differences of config.json must be a list; got {differences!r}")
    problems: list[str] = []
    margins: Mapping[Split, Floats] = {}
    trace = None
    try:
        margins = read_margins(folder / "margins.npz")
    except RecordError as problem:
        problems.append(str(problem))
    try:
        trace = read_trace(folder / "trace.npz")
    except RecordError as problem:
        problems.append(str(problem))
    with told_of("config.json"):
        configuration = object_field(record, "configuration")
    epochs = read_epochs(folder / "metrics.jsonl", NAMES)
    _check_shares(epochs)
    state, error = _state(folder, configuration, epochs, margins)
    if state == "unfinished" and (folder / MODEL).exists():
        done = f"{len(epochs.numbers)} of {planned_epochs(configuration)}"
        problems.append(
            f"the epochs after {done}, which metrics.jsonl lacks though there is a {MODEL}; the run counts as unfinished"
        )
    with told_of("config.json"):
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


def planned_epochs(configuration: Mapping[str, Any]) -> int | None:
    """How many epochs a run is to have; None if its configuration does not say."""
    planned = configuration.get("epochs")
    return planned if isinstance(planned, int) and not isinstance(planned, bool) else None


def _check_shares(epochs: Epochs) -> None:
    for quantity in QUANTITIES:
        values = epochs.of(quantity.split, quantity.name)
        if quantity.percent and ((values < 0) | (values > 1)).any():
            raise RecordError(f"{quantity.name} of {quantity.split} must be from 0 to 1 in every epoch of metrics.jsonl")


def _state(
    folder: Path, configuration: Mapping[str, Any], epochs: Epochs, margins: Mapping[Split, Floats]
) -> tuple[State, str | None]:
    """How a run ended; records of a finished run may be kept without its model, but not without an epoch."""
    planned, has_model = planned_epochs(configuration), (folder / MODEL).exists()
    finished = has_model if planned is None else (has_model or bool(margins)) and len(epochs.numbers) >= planned
    if finished:
        return "finished", None
    if not (folder / "failed.json").exists():
        return "unfinished", None
    try:
        return "failed", text_field(read_object(folder / "failed.json"), "error")
    except RecordError as error:
        return "failed", f"unknown: {error}"
