"""What a run leaves in its folder `runs/<experiment>/<head>/seed-<k>/`, and whether it is finished and whole.

| file | holds | written |
|---|---|---|
| `config.json` | what was asked for, what it ran on, its checksum, at the end those of the other files | first and last |
| `metrics.jsonl` | a line for each epoch | before each checkpoint |
| `last.ckpt`, `previous.ckpt` | everything for an exact resume, with copies of the two files above | every 30 s or so |
| `margins.npz`, `trace.npz` | the last measurement's margins, and the animation | at the end |
| `model.safetensors` | the trained model | at the end |

Every file is written beside its place and renamed. `run_status` is the one definition of finished and whole: `config.json` is
intact, says that the run finished, and every file it lists has the checksum it lists. A damaged file is rebuilt from the last
checkpoint by running the same command again.
"""

import json
import zipfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from guided_collapse.experiments.errors import DamageError
from guided_collapse.experiments.files import checksum

CONFIG = "config.json"
METRICS = "metrics.jsonl"
METRICS_BEFORE = "metrics.before.jsonl"  # those of a run that had to start again
MARGINS = "margins.npz"
TRACE = "trace.npz"
LAST_CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
MODEL = "model.safetensors"
FAILURE = "failed.json"
FINISHED = (METRICS, MARGINS, TRACE, MODEL)  # whose checksums `config.json` lists at the end
OF_A_RUN = (CONFIG, *FINISHED, LAST_CHECKPOINT, PREVIOUS_CHECKPOINT)
CHECKSUM = "sha256"  # the field of `config.json` with the checksum of all others
MOST_BYTES = 2**31  # many times the largest file

Place = Path | zipfile.Path  # on disk or in a zip archive
State = Literal["finished", "unfinished", "failed", "damaged"]
Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
Number = Annotated[float, Field(ge=-1e100, le=1e100)]  # far from where squares and powers of ten overflow
Numbers = Mapping[str, Number | None]
Whole = Annotated[int, Field(ge=0, lt=2**53)]
Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def record(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass that checks the types of its fields, for `parse_record`."""
    return pydantic_dataclass(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))(kind)  # type: ignore[return-value]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse_record(kind: type[Kind], text: str | bytes, name: str) -> Kind:
    """The record of that kind in JSON text.

    Raises:
        DamageError: if it is not such a record; `name` says where it is from.
    """
    try:
        found: Kind = _adapter(kind).validate_json(text)  # type: ignore[arg-type]
        return found
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise DamageError(f"{name} cannot be used: {where} {problem['msg']}; got {problem['input']!r:.200}") from error


class Record:
    """A JSON object with the fields of a dataclass."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object that holds the record."""
        content: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json")  # type: ignore[arg-type]
        return content


@record
class Inputs(Record):
    """What a model must know about its images."""

    shape: tuple[int, int, int]  # channels, height and width
    mean: tuple[float, ...]  # of each channel, with values from 0 to 1
    std: tuple[float, ...]  # of each channel
    class_names: tuple[str, ...]  # in the order of the logits


@record
class Hardware(Record):
    """The processor, its cores, and how many of them were used."""

    cpu: str  # the model
    cores: int | None  # of the machine
    threads: Annotated[int, Field(ge=1)]  # of each process
    devices: str  # the model of a GPU, or the kind of another device
    processes: Annotated[int, Field(ge=1)]  # of the run


@record
class Finished(Record):
    """The end of a run: the checksums of its files, by name."""

    files: Mapping[str, str]


@record
class RunFacts(Record):
    """What was asked for, and what it ran on: `config.json`."""

    experiment: str
    head: str
    seed: Whole  # of everything random
    configuration: Mapping[str, Any]  # what was asked for, as plain values
    protocol: str  # the rules by which heads are compared
    protocol_differences: tuple[str, ...]  # how this head's run differs from the others', in words
    num_classes: Annotated[int, Field(ge=2)]  # of the data
    feature_dim: Annotated[int, Field(ge=1)]  # of the head's input
    num_train: Whole
    num_test: Whole
    global_batch: Whole  # samples per step, over all processes
    loss_lower_bound: Number | None  # the lowest loss that such a head with this scale can reach; None without a scale
    versions: Mapping[str, Any]  # by package
    commit: str | None  # of this package; None if it is installed
    hardware: Mapping[str, Any]  # where the run started, as `Hardware` has it
    started: str  # when, in ISO 8601
    inputs: Inputs | None = None  # None for unconstrained features
    finished: Finished | None = None  # None until the run is finished
    format: Literal[2] = 2  # the version of the format; readers refuse another

    @property
    def planned(self) -> int | None:
        """The number of epochs that the run is to have; None if its configuration does not say."""
        planned = self.configuration.get("epochs")
        return planned if isinstance(planned, int) else None

    def as_text(self) -> str:
        """The contents of `config.json`, with its checksum."""
        content = self.to_json()
        return json.dumps(content | {CHECKSUM: _checksum_of(content)}, indent=2, allow_nan=False) + "\n"


@record
class EpochRecord(Record):
    """What was measured in an epoch: a line of `metrics.jsonl`."""

    epoch: Whole  # counted from 1
    running: Numbers | None = None  # loss and accuracy while training, which no curve or table uses
    seconds: Annotated[float, Field(ge=0)] | None = None  # of training; None in records stored without times
    train: Numbers | None = None  # measured on the training samples in eval mode; None if not in this epoch
    test: Numbers | None = None  # the same on the test samples

    def measured(self, split: Split) -> Numbers:
        """The measurement on these samples; empty if there was none."""
        return (self.train if split == "train" else self.test) or {}

    def to_json(self) -> dict[str, Any]:
        """The JSON object that holds the record, without missing values."""
        return {name: value for name, value in vars(self).items() if value is not None}


@record
class Failure(Record):
    """Why a run failed, when, and where in the code."""

    error: str
    time: str | None = None
    traceback: str | None = None


class Status(NamedTuple):
    """How far a run is; `reason` says why it failed or what is damaged, and `facts` is None if `config.json` is damaged."""

    state: State
    reason: str | None
    facts: RunFacts | None


def run_status(folder: Place) -> Status:
    """Whether the run in a folder is finished and whole; training, comparisons, export and reports all ask here."""
    try:
        facts = read_facts(folder)
    except DamageError as error:
        return Status("damaged", str(error), None)
    if facts.finished is not None:
        for name, digest in {METRICS: "", **facts.finished.files}.items():
            content = read_content(folder / name)
            if content is None or checksum(content) != digest:
                problem = (
                    "is missing" if content is None else f"is not as it was when the run finished, by its checksum in {CONFIG}"
                )
                return Status("damaged", f"{name} {problem}", facts)
        return Status("finished", None, facts)
    try:
        content = read_content(folder / FAILURE)
        failure = None if content is None else parse_record(Failure, content, FAILURE).error
    except DamageError as error:
        failure = f"unknown: {error}"
    return Status("unfinished" if failure is None else "failed", failure, facts)


def read_content(file: Place) -> bytes | None:
    """The contents of a file; None if it does not exist.

    Raises:
        DamageError: if it cannot be read, or is too large.
    """
    try:
        if not file.is_file():  # opening a pipe would wait forever
            if file.exists():
                raise DamageError(f"{file.name} must be a file; got something else")
            return None
        with file.open("rb") as opened:
            content: bytes = opened.read(MOST_BYTES + 1)
    except (OSError, zipfile.BadZipFile) as error:
        raise DamageError(f"{file.name} cannot be read: {error}") from error
    if len(content) > MOST_BYTES:
        raise DamageError(f"{file.name} must have at most {MOST_BYTES >> 20} MB; it has more")
    return content


def read_facts(folder: Place) -> RunFacts:
    """The contents of `config.json`.

    Raises:
        DamageError: if it is missing, damaged, or was altered.
    """
    content = read_content(folder / CONFIG)
    if content is None:
        raise DamageError(f"{CONFIG} is missing")
    return parse_facts(content, CONFIG)


def parse_facts(content: str | bytes, name: str) -> RunFacts:
    """The facts in the text of a `config.json`; refused as by `read_facts`."""
    facts = parse_record(RunFacts, content, name)
    fields = json.loads(content)
    if fields.pop(CHECKSUM, None) != _checksum_of(fields):
        raise DamageError(f"{name} was altered: its checksum is wrong")
    return facts


def _checksum_of(fields: Mapping[str, Any]) -> str:
    return checksum(json.dumps(fields, sort_keys=True).encode())


def records_as_text(records: Iterable[EpochRecord]) -> str:
    """The contents of `metrics.jsonl`: one line for each epoch."""
    return "".join(json.dumps(found.to_json(), allow_nan=False) + "\n" for found in records)


def records_from_text(text: str | bytes, name: str = METRICS) -> list[EpochRecord]:
    """The records in the lines of a `metrics.jsonl`.

    Raises:
        DamageError: for a line that is not a record, or epochs other than 1, 2, 3, ...
    """
    lines = (text.encode() if isinstance(text, str) else text).splitlines()
    records = [parse_record(EpochRecord, line, f"line {number} of {name}") for number, line in enumerate(lines, 1)]
    for number, found in enumerate(records, 1):
        if found.epoch != number:
            raise DamageError(f"line {number} of {name} must be epoch {number}; got epoch {found.epoch}")
    return records
