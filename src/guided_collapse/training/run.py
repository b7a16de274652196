"""The folder of a run: configuration, records, checkpoints, the finished model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guided_collapse.training.configuration import Configuration
from guided_collapse.training.files import remove_leftovers, write_json, write_text, written_whole

FORMAT = 1
Record = dict[str, Any]


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
        return self.path / "config.json"

    @property
    def model_file(self) -> Path:
        """The trained model's tensors. Written last: a run that has it is finished."""
        return self.path / "model.safetensors"

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end."""
        return self.model_file.exists()

    def configuration(self) -> Configuration | None:
        """The configuration of the run that is here; None if there is none.

        Raises:
            ValueError: if what is here cannot be read.
        """
        if not self.config_file.exists():
            return None
        return Configuration.from_dict(self.facts()["configuration"])

    def facts(self) -> dict[str, Any]:
        """The contents of `config.json`.

        Raises:
            ValueError: if it is missing or cannot be read.
        """
        try:
            content: dict[str, Any] = json.loads(self.config_file.read_text(encoding="utf-8"))
            if content["format"] != FORMAT or not isinstance(content["configuration"], dict):
                raise ValueError(f"{self.config_file} has format {content['format']!r}, and this version reads {FORMAT}.")
            return content
        except FileNotFoundError as error:
            raise ValueError(f"{self.path} is not the folder of a run: it has no config.json.") from error
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{self.config_file} is not the configuration of a run ({error}). Move the folder away.") from error

    def prepare(self, configuration: Configuration, *, lengthen: bool) -> None:
        """Makes the folder, or checks that the run in it is this one, or with `lengthen` becomes this one with more epochs.

        Raises:
            ValueError: for a folder with a run of another configuration.
        """
        there = self.configuration()
        if there is not None and configuration != (there.lengthened(configuration.epochs) if lengthen else there):
            old, new = there.to_dict(), configuration.to_dict()
            changes = "; ".join(f"{name} is {old[name]!r}, not {new[name]!r}" for name in new if old[name] != new[name])
            only_longer = old["epochs"] < new["epochs"] and old | {"epochs": new["epochs"]} == new
            raise ValueError(
                f"{self.path} holds a run of another configuration: {changes}. "
                f"Choose another --out or --experiment, or move it away{', or add --lengthen' if only_longer else ''}."
            )
        self.path.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Removes what a run that was killed or has failed left behind beside its records and checkpoints."""
        remove_leftovers(self.path)
        (self.path / "failed.json").unlink(missing_ok=True)

    def lengthen(self, configuration: Configuration) -> None:
        """Makes the run that is here one of this configuration, which has more epochs, and no longer a finished one."""
        if self.configuration() not in (None, configuration):
            self.model_file.unlink(missing_ok=True)
            write_json(self.config_file, self.facts() | {"configuration": configuration.to_dict()})

    def write_config(self, configuration: Configuration, facts: Mapping[str, Any]) -> None:
        """Writes `config.json`, once."""
        if self.config_file.exists():
            return
        summary = {"experiment": configuration.experiment, "head": configuration.head, "seed": configuration.seed}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"format": FORMAT, **summary, "configuration": configuration.to_dict(), **facts, "started": started}
        write_json(self.config_file, content)

    def records(self, until: int) -> list[Record]:
        """The records of the epochs 1 ... until."""
        lines = (self.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [record for record in map(json.loads, lines) if record["epoch"] <= until]

    def write_records(self, records: Sequence[Record]) -> None:
        """Writes all records, one line for each epoch."""
        lines = (json.dumps(record, allow_nan=False) + "\n" for record in records)
        write_text(self.path / "metrics.jsonl", "".join(lines))

    def write_arrays(self, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes a file of arrays."""
        with written_whole(self.path / name) as beside, beside.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    def write_failure(self, error: BaseException) -> None:
        """Says why the run failed."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self.path / "failed.json", {"error": f"{type(error).__name__}: {error}", "time": time})
