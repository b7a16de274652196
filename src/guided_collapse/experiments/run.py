"""One run: the files in its folder `runs/<experiment>/<head>/seed-<k>/`, whether it is finished and intact, and how it resumes.

| file | holds | written |
|---|---|---|
| `config.json` | configuration, data, hardware, its own checksum and, at the end, those of the other files | first and last |
| `metrics.jsonl` | a line for each epoch | before each checkpoint |
| `last.ckpt`, `previous.ckpt` | all state for an exact resume, with copies of the two files above | about every 30 s |
| `margins.npz`, `trace.npz` | the last measurement's margins, and the animation | at the end |
| `model.safetensors` | the trained model | at the end |
| `failed.json` | the error and its traceback | when the run fails |

`run_status` regards a run as finished and intact if `config.json` is undamaged and says that the run finished, and if the other
files have the checksums that it lists. Running the same command again rebuilds damaged files from the last checkpoint.
"""

import hashlib
import io
import json
import traceback
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from guided_collapse.experiments.configuration import Configuration, validation_message
from guided_collapse.experiments.errors import DamageError, RequestError
from guided_collapse.experiments.files import atomic_write, checksum, write_bytes, write_json
from guided_collapse.metrics.declared import Split

CONFIG = "config.json"
METRICS = "metrics.jsonl"
MARGINS = "margins.npz"
TRACE = "trace.npz"
LAST_CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
MODEL = "model.safetensors"
FAILURE = "failed.json"
FINISHED = (METRICS, MARGINS, TRACE, MODEL)  # the files whose checksums `config.json` lists at the end
OF_A_RUN = (CONFIG, *FINISHED, LAST_CHECKPOINT, PREVIOUS_CHECKPOINT)
CHECKSUM = "sha256"  # the field of `config.json` with the checksum of all its other fields

Place = Path | zipfile.Path  # on disk or in a zip archive
State = Literal["finished", "unfinished", "failed", "damaged"]
Numbers = Mapping[str, float | None]
Kind = TypeVar("Kind")
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, config=STRICT)
class Inputs:
    """What a model needs to know about its images or given features."""

    shape: tuple[int, ...]  # channels, height and width; or the width of features
    mean: tuple[float, ...]  # of each channel, for pixels from 0 to 1; or of each feature
    std: tuple[float, ...]  # of each channel or feature
    class_names: tuple[str, ...]  # in the order of the logits


@dataclass(frozen=True, config=STRICT)
class Finished:
    """The checksums of the files of a finished run, by name."""

    files: Mapping[str, str]


@dataclass(frozen=True, config=STRICT)
class RunFacts:
    """The configuration, data and hardware of a run: the contents of `config.json`."""

    experiment: str
    head: str
    seed: int  # of all randomness
    configuration: Mapping[str, Any]  # the requested configuration, as plain values
    protocol: str  # the rules by which heads are compared
    protocol_differences: tuple[str, ...]  # how this head's run differs from those of other heads
    num_classes: int  # of the data
    feature_dim: int  # of the head's input
    num_train: int
    num_test: int
    global_batch: int  # samples per step, over all processes
    loss_lower_bound: float | None  # the lowest loss that the head can reach; None if the norm of features or rows is free
    versions: Mapping[str, Any]  # by package
    commit: str | None  # of this package; None unless it runs from a git checkout
    hardware: Mapping[str, Any]  # where the run started, as `launch.hardware` describes it
    started: str  # when the run started, in ISO 8601
    inputs: Inputs | None = None  # None for unconstrained features
    finished: Finished | None = None  # None until the run is finished
    format: Literal[2] = 2  # format version; readers reject any other

    @property
    def planned(self) -> int | None:
        """The planned number of epochs; None if the configuration does not say."""
        return self.configuration.get("epochs")

    def as_text(self) -> str:
        """Returns the contents of `config.json`, with its checksum."""
        content = asdict(self)
        return json.dumps(content | {CHECKSUM: _checksum_of(content)}, indent=2, allow_nan=False) + "\n"


@dataclass(frozen=True, config=STRICT)
class EpochRecord:
    """The measurements of an epoch: a line of `metrics.jsonl`."""

    epoch: int  # counted from 1
    running: Numbers | None = None  # loss and accuracy while training, which reports do not use
    seconds: float | None = None  # of training; None in records stored without times
    train: Numbers | None = None  # metrics of the training samples in eval mode; None if this epoch was not measured
    test: Numbers | None = None  # metrics of the test samples in eval mode; None if there are none or they were not measured

    def measured(self, split: Split) -> Numbers:
        """Returns the metrics of this split; empty if they were not measured."""
        return (self.train if split == "train" else self.test) or {}

    def to_json(self) -> dict[str, Any]:
        """Returns the line as a JSON object, without missing values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, config=STRICT)
class Failure:
    """Why a run failed, when, and where in the code: `failed.json`."""

    error: str
    time: str | None = None
    traceback: str | None = None


class Status(NamedTuple):
    """The state of a run; `reason` says why it failed or what is damaged, and `facts` is None if `config.json` is damaged."""

    state: State
    reason: str | None
    facts: RunFacts | None


def run_status(folder: Place) -> Status:
    """Returns the status of the run in a folder. Training, comparisons, export and reports all rely on this function."""
    facts = None
    try:
        facts = _parse_facts(_read(folder / CONFIG))
        if facts.finished is not None:
            for name, digest in facts.finished.files.items():
                if checksum(_read(folder / name)) != digest:
                    raise DamageError(f"{name} has changed since the run finished: its checksum is not that in {CONFIG}")
            return Status("finished", None, facts)
        if (folder / FAILURE).exists():
            return Status("failed", read_record(folder / FAILURE, Failure).error, facts)
    except DamageError as error:
        return Status("damaged", str(error), facts)
    return Status("unfinished", None, facts)


def read_epoch_records(folder: Place) -> list[EpochRecord]:
    """Returns the records in `metrics.jsonl`, or an empty list if there is no file yet; raises DamageError if it is damaged."""
    file = folder / METRICS
    return _parse_epochs(_read(file)) if file.exists() else []


def read_record(file: Place, kind: type[Kind]) -> Kind:
    """Returns the record of this kind in a JSON file; raises DamageError if the file is missing or holds something else."""
    return _parse(kind, _read(file), file.name)


def records_as_text(records: Iterable[EpochRecord]) -> str:
    """Returns the contents of `metrics.jsonl`: one line for each epoch."""
    return "".join(json.dumps(found.to_json(), allow_nan=False) + "\n" for found in records)


def _read(file: Place) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        raise DamageError(f"{file.name} is missing") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise DamageError(f"{file.name} cannot be read: {error}") from error


def _parse(kind: type[Kind], text: bytes, name: str) -> Kind:
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise DamageError(f"{name} cannot be used: {validation_message(error).rstrip('.')}") from error


def _parse_facts(text: bytes) -> RunFacts:
    facts, fields = _parse(RunFacts, text, CONFIG), json.loads(text)
    if fields.pop(CHECKSUM, None) != _checksum_of(fields):
        raise DamageError(f"{CONFIG} was altered: its checksum is wrong")
    return facts


def _checksum_of(fields: Mapping[str, Any]) -> str:
    return checksum(json.dumps(fields, sort_keys=True).encode())


def _parse_epochs(text: bytes) -> list[EpochRecord]:
    records = _parse(list[EpochRecord], b"[" + b",".join(text.splitlines()) + b"]", METRICS)
    for number, found in enumerate(records, 1):
        if found.epoch != number:
            raise DamageError(f"{METRICS} must have epoch {number} in line {number}; got epoch {found.epoch}")
    return records


class Checkpoint(NamedTuple):
    """The state that a run resumes from."""

    file: Path
    facts: RunFacts  # of the run, which may have been extended since
    records: list[EpochRecord]  # of the epochs that were finished when it was written
    state: dict[str, Any]  # of the model, the optimizer, the random number generator and the trace


def save_checkpoint(folder: Path, facts: RunFacts, records: list[EpochRecord], state: Mapping[str, Any]) -> None:
    """Writes `last.ckpt`, which starts with its checksum; an existing `last.ckpt` becomes `previous.ckpt`."""
    import torch

    buffer = io.BytesIO()
    torch.save({**state, CONFIG: facts.as_text(), METRICS: records_as_text(records)}, buffer)
    content = buffer.getbuffer()
    with atomic_write(folder / LAST_CHECKPOINT) as beside:
        with beside.open("wb") as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
        if (folder / LAST_CHECKPOINT).exists():
            with atomic_write(folder / PREVIOUS_CHECKPOINT) as link:
                link.hardlink_to(folder / LAST_CHECKPOINT)  # a valid last checkpoint always exists


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """Returns the newest intact checkpoint; None if there is none. Warns about damaged ones."""
    for path in (folder / LAST_CHECKPOINT, folder / PREVIOUS_CHECKPOINT):
        if not path.exists():
            continue
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            warnings.warn(f"{path} is damaged; ignoring this checkpoint.", RuntimeWarning, stacklevel=2)
            continue
        import torch

        state = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
        facts, records = (state.pop(name).encode() for name in (CONFIG, METRICS))
        return Checkpoint(path, _parse_facts(facts), _parse_epochs(records), state)
    return None


class RunFolder(NamedTuple):
    """The folder of a run, `OUT/<experiment>/<head>/seed-<k>`, as training writes it."""

    path: Path

    @classmethod
    def of(cls, configuration: Configuration, out: Path) -> "RunFolder":
        """Returns the folder of this configuration's run."""
        return cls(out / configuration.experiment / configuration.head / f"seed-{configuration.seed}")

    def as_here(self, configuration: Configuration) -> Configuration:
        """Returns the configuration, with `trace` on if the run in this folder has it on, because a trace changes no result."""
        has_trace = self.exists() and configuration_of(self.facts()).trace
        return replace(configuration, trace=configuration.trace or has_trace)

    def exists(self) -> bool:
        """Returns whether the folder has files of a run."""
        return any((self.path / name).exists() for name in OF_A_RUN)

    def check_exists(self) -> None:
        """Raises RequestError if the folder has no files of a run."""
        if not self.exists():
            runs = (run.parent for pattern in ("seed-*", "*/seed-*") for run in sorted(self.path.glob(f"{pattern}/{CONFIG}")))
            hint = next((f"Did you mean {run}?" for run in runs), "Check the path.")
            raise RequestError(f"{self.path} must be the folder of a run; it has no {CONFIG}. {hint}")

    def facts(self) -> RunFacts:
        """Returns the contents of `config.json` or, if it is missing or damaged, of its copy in a checkpoint, with a warning."""
        self.check_exists()
        try:
            return _parse_facts(_read(self.path / CONFIG))
        except DamageError as error:
            checkpoint = load_checkpoint(self.path)
            if checkpoint is None:
                raise DamageError(f"{self.path}: {error}. Put it back, or move the folder away.") from error
            warnings.warn(f"{self.path}: {error}; using the copy in {checkpoint.file.name}.", RuntimeWarning, stacklevel=2)
            return checkpoint.facts

    def exportable(self) -> tuple[RunFacts, Inputs]:
        """Returns the facts of a finished run, and what its model needs to know about its inputs.

        Raises:
            RequestError: if there is no finished run with a network in the folder.
            DamageError: if the run is damaged.
        """
        self.check_exists()
        state, reason, facts = run_status(self.path)
        if facts is None or state == "damaged":
            raise DamageError(f"{self.path}: {reason}. To rebuild it, run: guided-collapse resume {self.path}")
        if facts.inputs is None:
            raise RequestError(
                f"{self.path} must be a run with a network; it has unconstrained features, which exist for its own samples alone."
            )
        if state != "finished" or not (self.path / MODEL).exists():
            raise RequestError(f"{self.path} is not a finished run with a {MODEL}. Run: guided-collapse resume {self.path}")
        return facts, facts.inputs

    def is_finished(self, configuration: Configuration) -> bool:
        """Returns whether the folder has a finished and intact run of this configuration. Warns about a damaged file."""
        status = run_status(self.path)
        if status.state == "damaged" and status.facts is not None:
            warnings.warn(f"{self.path}: {status.reason}; rebuilding it from the last checkpoint.", RuntimeWarning, stacklevel=2)
        return status.state == "finished" and status.facts is not None and configuration_of(status.facts) == configuration

    def check(self, configuration: Configuration, *, lengthen: bool) -> None:
        """Raises RequestError if the folder holds a run with another configuration; with `lengthen`, it may only be shorter."""
        if not self.exists():
            return
        there = configuration_of(self.facts())
        if configuration != (there.lengthened(configuration.epochs) if lengthen else there):
            longer = there.schedule == "constant" and replace(there, epochs=configuration.epochs) == configuration
            raise RequestError(
                f"{self.path} holds a run with another configuration: {there.differences(configuration)}. "
                f"Choose another --out or --experiment{', add --lengthen' if longer else ''}, or move it away."
            )

    def checkpoint(self, configuration: Configuration) -> Checkpoint | None:
        """Returns the checkpoint to resume from, or None to start from the beginning.

        Raises:
            DamageError: if the checkpoint belongs to another run, or if it is missing although the run has been finished before.
        """
        found = load_checkpoint(self.path)
        if found is None:
            if (self.path / MODEL).exists():
                raise DamageError(
                    f"{self.path} can be rebuilt or extended only from {LAST_CHECKPOINT}, which is missing or damaged. "
                    "Nothing was changed; start a new run with another --out or --experiment, or move this one away."
                )
            return None
        of_checkpoint = configuration_of(found.facts)
        if replace(of_checkpoint, epochs=configuration.epochs) != configuration:
            raise DamageError(
                f"{found.file} must be a checkpoint of the run in {CONFIG}; it belongs to another: "
                f"{of_checkpoint.differences(configuration)}. Put the right file back, or move the folder away."
            )
        return found

    def begin(self, facts: RunFacts, records: list[EpochRecord]) -> None:
        """Writes `config.json` and `metrics.jsonl` for a run that starts or resumes after these records; removes leftovers."""
        for leftover in self.path.glob(".*.part"):  # of a process that was killed
            leftover.unlink()
        (self.path / FAILURE).unlink(missing_ok=True)
        write_bytes(self.path / CONFIG, facts.as_text().encode())
        if records:
            self.write_records(records)

    def write_records(self, records: Iterable[EpochRecord]) -> None:
        """Writes all records, one line for each epoch."""
        write_bytes(self.path / METRICS, records_as_text(records).encode())

    def write_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes arrays to an .npz file of this name, atomically."""
        with atomic_write(self.path / name) as beside, beside.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    def write_failure(self, error: BaseException) -> None:
        """Writes the error and its traceback to `failed.json`, if the folder is still writable."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        failure = Failure(f"{type(error).__name__}: {error}", time, "".join(traceback.format_exception(error)))
        with suppress(OSError):
            write_json(self.path / FAILURE, asdict(failure))

    def finish(self, facts: RunFacts) -> None:
        """Marks the run as finished by writing the checksums of its files, which must be complete, to `config.json`."""
        files = {name: checksum((self.path / name).read_bytes()) for name in FINISHED if (self.path / name).exists()}
        write_bytes(self.path / CONFIG, replace(facts, finished=Finished(files)).as_text().encode())
        (self.path / PREVIOUS_CHECKPOINT).unlink(missing_ok=True)


def configuration_of(facts: RunFacts) -> Configuration:
    """Returns the configuration in the facts; raises DamageError if this version does not accept it."""
    try:
        return Configuration(**facts.configuration)
    except ValueError as error:
        raise DamageError(f"{CONFIG} has a configuration that this version does not accept: {str(error).rstrip('.')}") from error
