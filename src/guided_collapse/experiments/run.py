"""The folder of a run, as training writes it: checkpoints, resuming, extending, the finished run."""

import hashlib
import io
import traceback
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.errors import DamageError, RequestError
from guided_collapse.experiments.files import checksum, remove_leftovers, write_bytes, write_json, write_text, written_whole
from guided_collapse.experiments.run_format import (
    CONFIG,
    FAILURE,
    FINISHED,
    LAST_CHECKPOINT,
    METRICS,
    METRICS_BEFORE,
    MODEL,
    OF_A_RUN,
    PREVIOUS_CHECKPOINT,
    EpochRecord,
    Failure,
    Finished,
    RunFacts,
    parse_facts,
    parse_record,
    read_content,
    read_facts,
    records_as_text,
    records_from_text,
    run_status,
)


def finish(folder: Path, facts: RunFacts) -> None:
    """Writes `config.json` for a run whose other files are complete: from then on it is finished."""
    present = [name for name in FINISHED if (folder / name).exists()]
    files = {name: checksum((folder / name).read_bytes()) for name in present}
    write_text(folder / CONFIG, replace(facts, finished=Finished(files)).as_text())


class Checkpoint(NamedTuple):
    """What a run resumes from."""

    file: Path
    facts: RunFacts  # those of the run, which may have been shorter when the checkpoint was written
    records: list[EpochRecord]  # of all finished epochs
    state: dict[str, Any]  # of the model, the optimizer, the random numbers and the trace


def save_checkpoint(folder: Path, facts: RunFacts, records: list[EpochRecord], state: Mapping[str, Any]) -> None:
    """Writes `last.ckpt`, with a checksum in its first bytes; the one before becomes `previous.ckpt`."""
    import torch

    buffer = io.BytesIO()
    torch.save({**state, CONFIG: facts.as_text(), METRICS: records_as_text(records)}, buffer)
    content = buffer.getbuffer()
    with written_whole(folder / LAST_CHECKPOINT) as beside:
        with beside.open("wb") as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
        if (folder / LAST_CHECKPOINT).exists():
            # A link, so that a valid last checkpoint always exists.
            with written_whole(folder / PREVIOUS_CHECKPOINT) as link:
                link.hardlink_to(folder / LAST_CHECKPOINT)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none.

    Raises:
        DamageError: for a file that is whole, but not a checkpoint.

    Warns:
        RuntimeWarning: for each that is damaged.
    """
    for path in (folder / LAST_CHECKPOINT, folder / PREVIOUS_CHECKPOINT):
        if not path.exists():
            continue
        content = path.read_bytes()
        digest, payload = content[:32], content[32:]
        if hashlib.sha256(payload).digest() != digest:
            warnings.warn(f"{path} is damaged; going back to the checkpoint before it.", RuntimeWarning, stacklevel=2)
            continue
        import torch

        try:
            state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
            facts = parse_facts(state.pop(CONFIG), CONFIG)
            return Checkpoint(path, facts, records_from_text(state.pop(METRICS)), state)
        except (UnpicklingError, EOFError, RuntimeError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise not_a_checkpoint(path, str(error)) from error
    return None


def not_a_checkpoint(path: Path, reason: str) -> DamageError:
    """The error for a file whose checksum is right, but that is not a checkpoint of the run in its folder."""
    return DamageError(
        f"{path} must be a checkpoint of the run in its folder; it is not: {' '.join(reason.split())}. "
        "Put the right one back, or move it away to resume from the previous one, if there is one."
    )


@dataclass(frozen=True)
class RunFolder:
    """`OUT/<experiment>/<head>/seed-<k>`."""

    path: Path

    @classmethod
    def of(cls, configuration: Configuration, out: Path) -> "RunFolder":
        """The folder of this configuration's run."""
        return cls(out / configuration.experiment / configuration.head / f"seed-{configuration.seed}")

    def facts(self) -> RunFacts:
        """The contents of `config.json`, or of its copy in the last checkpoint if it is missing or damaged.

        Raises:
            DamageError: if neither can be read.
            RequestError: if there is no run in the folder.

        Warns:
            RuntimeWarning: if it is damaged.
        """
        try:
            return read_facts(self.path)
        except DamageError as error:
            problem = error
        if not any((self.path / name).exists() for name in OF_A_RUN):
            raise RequestError(f"{self.path} must be the folder of a run; it has no {CONFIG}. Check the path.")
        checkpoint = load_checkpoint(self.path)
        if checkpoint is None:
            raise DamageError(f"{self.path}: {problem}. Put it back, or move the folder away.") from problem
        warnings.warn(f"{self.path}: {problem}; using the copy in {checkpoint.file.name}.", RuntimeWarning, stacklevel=2)
        return checkpoint.facts

    def configuration(self) -> Configuration | None:
        """The configuration of the run in this folder; None if there is no run.

        Raises:
            DamageError: if it cannot be read.
        """
        try:
            facts = self.facts()
        except RequestError:
            return None
        return configuration_of(facts)

    def is_finished(self, configuration: Configuration) -> bool:
        """True if the run of this configuration is finished and whole.

        Warns:
            RuntimeWarning: for a damaged file.
        """
        status = run_status(self.path)
        if status.state == "damaged" and status.facts is not None:
            warnings.warn(f"{self.path}: {status.reason}; rebuilding it from the last checkpoint.", RuntimeWarning, stacklevel=2)
        return status.state == "finished" and status.facts is not None and configuration_of(status.facts) == configuration

    def prepare(self, configuration: Configuration, *, lengthen: bool) -> None:
        """Makes the folder, or checks that it holds this run, or with `lengthen` a shorter version of it.

        Raises:
            RequestError: for a folder with a run of another configuration.
        """
        there = self.configuration()
        if there is not None and configuration != (there.lengthened(configuration.epochs) if lengthen else there):
            way_out = f"Choose another --out or --experiment{', add --lengthen' if there.becomes(configuration) else ''}"
            raise RequestError(
                f"{self.path} has a run of another configuration: {there.differences(configuration)}. {way_out}, or move it away."
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def checkpoint(self, configuration: Configuration) -> Checkpoint | None:
        """What the run of this configuration resumes from; None if it starts from the beginning.

        Raises:
            DamageError: if the run has finished before and no checkpoint is whole, or if the checkpoint is of another run.
        """
        found = load_checkpoint(self.path)
        if found is None:
            if (self.path / MODEL).exists():
                raise DamageError(
                    f"{self.path} can be rebuilt or extended only from its last checkpoint, and {LAST_CHECKPOINT} is not whole. "
                    "Nothing was changed; start a new run with another --out or --experiment, or move this one away."
                )
            return None
        of_checkpoint = configuration_of(found.facts)
        if not of_checkpoint.becomes(configuration):
            raise not_a_checkpoint(found.file, f"{CONFIG} has another configuration: {of_checkpoint.differences(configuration)}")
        if not 1 <= len(found.records) <= configuration.epochs:
            raise not_a_checkpoint(found.file, f"it has {len(found.records)} epochs of 1 ... {configuration.epochs}")
        return found

    def begin(self, facts: RunFacts, records: list[EpochRecord]) -> None:
        """Makes `config.json` and `metrics.jsonl` those of a run that starts here, or resumes after these records.

        Warns:
            RuntimeWarning: if it starts again although it had come further than its first epoch. Its old records are kept.
        """
        remove_leftovers(self.path)
        (self.path / FAILURE).unlink(missing_ok=True)
        file = self.path / METRICS
        if not records and file.exists() and len(file.read_bytes().splitlines()) > 1:
            aside = file.replace(self.path / METRICS_BEFORE)
            words = f"the checkpoints in {self.path} are damaged or missing; the run starts again. Its old records are in {aside}."
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        write_text(self.path / CONFIG, facts.as_text())
        if records:
            self.write_records(records)

    def records(self, until: int | None = None) -> list[EpochRecord]:
        """The records of the epochs 1 ... until, or of all.

        Raises:
            DamageError: if one is missing.
        """
        file = self.path / METRICS
        records = records_from_text(read_content(file) or b"", str(file))
        if len(records) < (until or 1):
            raise DamageError(f"{file} must have {until or 'some'} epochs; it has {len(records)}")
        return records[:until]

    def write_records(self, records: Iterable[EpochRecord]) -> None:
        """Writes all records, one line for each epoch."""
        write_text(self.path / METRICS, records_as_text(records))

    def write_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes a file of arrays."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_bytes(self.path / name, buffer.getvalue())

    def failure(self) -> Failure | None:
        """Why the run failed; None if that is not known.

        Raises:
            DamageError: for a damaged file.
        """
        content = read_content(self.path / FAILURE)
        return None if content is None else parse_record(Failure, content, str(self.path / FAILURE))

    def write_failure(self, error: BaseException) -> None:
        """Records why and where in the code the run failed, if it can still be written."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        failure = Failure(f"{type(error).__name__}: {error}", time, "".join(traceback.format_exception(error)))
        with suppress(OSError):
            write_json(self.path / FAILURE, failure.to_json())


def configuration_of(facts: RunFacts) -> Configuration:
    """The configuration among the facts.

    Raises:
        DamageError: if it is not one of this version, or not that of the experiment, head and seed beside it.
    """
    try:
        configuration = Configuration.from_dict(facts.configuration)
    except ValueError as error:
        raise DamageError(f"{CONFIG} has no configuration of this version: {error}") from error
    if (configuration.experiment, configuration.head, configuration.seed) != (facts.experiment, facts.head, facts.seed):
        raise DamageError(f"{CONFIG} must name the experiment, head and seed of its configuration, {configuration.title}")
    return configuration
