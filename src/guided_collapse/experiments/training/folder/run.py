"""The folder of a run: configuration, records, checkpoints, the finished model.

| file | says | written | if it is damaged |
|---|---|---|---|
| `config.json` | the facts | first, and when the run is made longer | every checkpoint and the model keep a copy |
| `metrics.jsonl` | the records | before each checkpoint | every checkpoint keeps a copy |
| `last.ckpt` | how far the run has come, with a checksum | after them | `previous.ckpt`, until the run is finished |
| `margins.npz`, `trace.npz` | what was measured last | at the end | made again from the last checkpoint |
| `model.safetensors` | the finished model, with a seal | last of all | made again from the last checkpoint |

The seal has the facts, and the checksums of the model and of the files beside it. A run is finished if the model's facts are those
of the folder and everything that was sealed is whole. So a run that is made longer is not finished until its model is the longer
one, and until then keeps the one that it has.
"""

import io
import json
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.errors import DamageError, RequestError
from guided_collapse.experiments.records import schema
from guided_collapse.experiments.records.contents import read_object
from guided_collapse.experiments.records.epochs import records_as_text, records_from_text
from guided_collapse.experiments.records.files import checksum, remove_leftovers, write_bytes, write_json, write_text
from guided_collapse.experiments.records.schema import EpochRecord, Failure, RunFacts
from guided_collapse.experiments.records.seal import Seal, read_seal, sealed
from guided_collapse.experiments.training.folder.facts import (
    Facts,
    checked_facts,
    configuration_of,
    with_checksum,
    with_configuration,
)
from guided_collapse.experiments.configuration import Configuration


@dataclass(frozen=True)
class End:
    """What a run that has come to an end left there."""

    facts: Facts | None = None
    """Of the finished model, whose epochs may be fewer than those of a run that was made longer; None if no model is whole."""
    damage: tuple[str, ...] = ()
    """What is not as it was, in words."""


@dataclass(frozen=True)
class RunFolder:
    """`OUT/<experiment>/<head>/seed-<k>`."""

    path: Path

    @classmethod
    def of(cls, configuration: Configuration, out: Path) -> "RunFolder":
        """The folder of this configuration's run."""
        return cls(out / configuration.experiment / configuration.head / f"seed-{configuration.seed}")

    @property
    def config_file(self) -> Path:
        """What was asked for, and what it ran on."""
        return self.path / schema.CONFIG

    @property
    def records_file(self) -> Path:
        """What was seen in each epoch."""
        return self.path / schema.METRICS

    @property
    def model_file(self) -> Path:
        """The trained model's tensors, sealed."""
        return self.path / schema.MODEL

    @property
    def is_begun(self) -> bool:
        """Whether there is anything of a run."""
        return any((self.path / name).exists() for name in schema.OF_A_RUN)

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end, and everything it left there is whole."""
        end = self.end()
        return not end.damage and end.facts is not None and configuration_of(end.facts) == self.configuration()

    def end(self) -> End:
        """What the run left at its end, if it has come to one.

        Raises:
            DamageError: if it cannot be said of which run the folder is.
        """
        if not self.model_file.exists():
            return End()
        try:
            seal = self._seal()
            if seal is None:
                # The model of an earlier version is whole as far as can be said, and was written when all records were there.
                facts = self.facts()
                self.records(until=configuration_of(facts).epochs)
                return End(facts)
        except ValueError as error:
            return End(damage=(str(error),))
        of_model, of_run = configuration_of(seal.facts), configuration_of(self.facts())
        if not of_model.becomes(of_run):
            raise of_two_runs(self.config_file, self.model_file, differences(of_model, of_run))
        return End(seal.facts, self._damage(seal) if of_model == of_run else ())

    def _damage(self, seal: Seal) -> tuple[str, ...]:
        """The files that are not as they were sealed."""
        checksums = self._checksums()
        changed = [name for name, digest in seal.files.items() if checksums.get(name) != digest]
        try:
            if self._written_facts() != seal.facts:
                changed.append(self.config_file.name)
        except ValueError:
            changed.append(self.config_file.name)
        return tuple(f"{self.path / name} is not as it was when the run finished" for name in changed)

    def _checksums(self) -> dict[str, str]:
        files = (self.path / name for name in schema.SEALED)
        return {file.name: checksum(file.read_bytes()) for file in files if file.exists()}

    def configuration(self) -> Configuration | None:
        """The configuration of the run that is here; None if there is none.

        Raises:
            DamageError: if what is here cannot be read.
        """
        return configuration_of(self.facts()) if self.is_begun else None

    def facts(self) -> Facts:
        """The contents of `config.json`, or if it is missing or damaged, what the last checkpoint or the model keeps of it.

        Raises:
            DamageError: if there are neither.
            RequestError: if the folder is not that of a run.

        Warns:
            RuntimeWarning: if it is damaged.
        """
        try:
            return self._written_facts()
        except ValueError as error:
            problem = error
        kept = self._kept_facts() if self.is_begun else None
        if kept is None:
            kind = DamageError if self.is_begun else RequestError
            raise kind(f"{problem}. Put it back, or move the folder away.") from problem
        file, facts = kept
        warnings.warn(f"{problem}; taken is what {file} keeps of it.", RuntimeWarning, stacklevel=2)
        return facts

    def _written_facts(self) -> Facts:
        try:
            return checked_facts(json.loads(self.config_file.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DamageError(f"{self.path} has no {schema.CONFIG}, which the folder of a run has") from error
        except (ValueError, RecursionError) as error:
            raise DamageError(f"{self.config_file} is not the configuration of a run ({str(error).removesuffix('.')})") from error

    def _kept_facts(self) -> tuple[Path, Facts] | None:
        # Here, because it takes torch, which a wrong request need not wait for.
        from guided_collapse.experiments.training.folder.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(self.path)
        if checkpoint is not None and checkpoint.facts is not None:
            return checkpoint.file, checkpoint.facts
        seal = self._seal() if self.model_file.exists() else None
        return None if seal is None else (self.model_file, seal.facts)

    def prepare(self, configuration: Configuration, *, lengthen: bool) -> None:
        """Makes the folder, or checks that the run in it is this one, or with `lengthen` becomes this one with more epochs.

        Raises:
            RequestError: for a folder with a run of another configuration.
        """
        there = self.configuration()
        if there is not None and configuration != (there.lengthened(configuration.epochs) if lengthen else there):
            way_out = "Choose another --out or --experiment, or move it away"
            raise RequestError(
                f"{self.config_file} is that of a run of another configuration: {differences(there, configuration)}. "
                f"{way_out}{', or add --lengthen' if there.becomes(configuration) else ''}."
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Removes what a run that was killed or has failed left behind beside its records and checkpoints."""
        remove_leftovers(self.path)
        (self.path / schema.FAILURE).unlink(missing_ok=True)

    def begin(self, facts: RunFacts) -> Facts:
        """Writes `config.json` for a run that begins here, and returns all that it says.

        Warns:
            RuntimeWarning: if it begins again, though it has come further than its first epoch. Its records are kept aside.
        """
        if self.records_file.exists() and len(self.records_file.read_bytes().splitlines()) > 1:
            aside = self.records_file.replace(self.path / schema.METRICS_BEFORE)
            words = (
                f"the checkpoints in {self.path} are damaged or missing; the run begins again. Its records so far are in {aside}."
            )
            warnings.warn(words, RuntimeWarning, stacklevel=2)
        return self._write_facts(facts.to_json())

    def go_on(self, configuration: Configuration, facts: Facts, records: Sequence[EpochRecord]) -> Facts:
        """Makes `config.json` and the records those of a run that goes on here, perhaps to a later end, and returns the facts."""
        end = self.end()
        if end.facts is not None and configuration_of(end.facts).epochs < configuration.epochs and self._seal() is None:
            # The model of an earlier version does not say how many epochs it has, and config.json is about to say another number.
            self.write_model(self.model_file.read_bytes(), end.facts)
        self.write_records(records)
        return self._write_facts(with_configuration(facts, configuration))

    def _write_facts(self, facts: Facts) -> Facts:
        write_json(self.config_file, with_checksum(facts))
        return self._written_facts()

    def _seal(self) -> Seal | None:
        """What the finished model says of itself, if training and export can rely on it."""
        try:
            seal = read_seal(self.model_file)
        except ValueError as error:
            raise DamageError(str(error)) from error
        try:
            return None if seal is None else Seal(checked_facts(seal.facts), seal.files)
        except ValueError as error:
            raise DamageError(f"{self.model_file} is damaged ({error})") from error

    def records(self, until: int | None = None) -> list[EpochRecord]:
        """The records of the epochs 1 ... until, or of all that are there.

        Raises:
            DamageError: if one is missing.
        """
        try:
            records = records_from_text(self.records_file.read_text(encoding="utf-8"))
            if until is not None and len(records) < until:
                raise ValueError(f"it has the epochs up to {len(records)}, and {until} are needed")
        except FileNotFoundError as error:
            raise DamageError(f"{self.records_file} is missing") from error
        except (ValueError, RecursionError) as error:
            raise DamageError(f"{self.records_file} is damaged: {error}") from error
        return records[:until]

    def write_records(self, records: Sequence[EpochRecord]) -> None:
        """Writes all records, one line for each epoch."""
        write_text(self.records_file, records_as_text(records))

    def write_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes a file of arrays."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        write_bytes(self.path / name, buffer.getvalue())

    def write_model(self, content: bytes, facts: Facts) -> None:
        """Writes the finished model, in safetensors, sealed with these facts and the files that are there."""
        write_bytes(self.model_file, sealed(content, Seal(facts, self._checksums())))

    def failure(self) -> Failure | None:
        """Why the run failed; None if that is not known.

        Raises:
            DamageError: for a file that does not say it.
        """
        file = self.path / schema.FAILURE
        try:
            return Failure.from_json(read_object(file)) if file.exists() else None
        except ValueError as error:
            raise DamageError(f"{file} is damaged: {error}") from error

    def write_failure(self, error: BaseException) -> None:
        """Says why and where in the code the run failed, if that can be written where perhaps nothing could be."""
        failure = Failure(
            error=f"{type(error).__name__}: {error}",
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            traceback="".join(traceback.format_exception(error)),
        )
        with suppress(OSError):
            write_json(self.path / schema.FAILURE, failure.to_json())


def differences(old: Configuration, new: Configuration) -> str:
    """What is another in the new configuration, in words; empty if nothing is."""
    were, are = old.to_dict(), new.to_dict()
    return "; ".join(f"{name} is {were[name]!r}, not {are[name]!r}" for name in are if were[name] != are[name])


def of_two_runs(config_file: Path, other: Path, changes: str) -> DamageError:
    """The error for a file that belongs to a run of another configuration."""
    return DamageError(
        f"{config_file} and {other.name} must be of one run; got those of two: {changes}. "
        "Put the right file back, or move the wrong one away and resume the run, which writes it again."
    )
