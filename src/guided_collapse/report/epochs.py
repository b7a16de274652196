"""The measurements of a run, epoch by epoch."""

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from guided_collapse.report.fields import RecordError, number_field, object_field, parse_object, whole_field

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Epochs:
    """What `metrics.jsonl` holds, without what was seen while training: curves and tables rest on measurements in eval mode.

    Attributes:
        numbers: (num_epochs,), increasing, from 1.
        seconds: (num_epochs,), training time of each epoch; NaN where it is missing.
        values: (num_epochs,) by split and name; NaN where a quantity was not measured.
    """

    numbers: Integers
    seconds: Floats
    values: Mapping[tuple[Split, str], Floats]

    def of(self, split: Split, name: str) -> Floats:
        """(num_epochs,), the values of one quantity."""
        return self.values.get((split, name), np.full(len(self.numbers), np.nan))

    def elapsed(self) -> Floats:
        """(num_epochs,), the training time up to the end of each epoch; NaN from where an epoch or its time is missing."""
        known = np.where(self.numbers == np.arange(1, len(self.numbers) + 1), self.seconds, np.nan)
        return np.cumsum(known)


def read_epochs(path: Path, names: Mapping[Split, frozenset[str]]) -> Epochs:
    """The measurements in a file, or in its compressed form; none if there is no file, as in a run that has just begun.

    A last line that was cut off while it was written is passed over.

    Args:
        path: of `metrics.jsonl`; records that are kept may have `metrics.jsonl.gz` instead.
        names: the quantities to take, by split.

    Raises:
        RecordError: for a file that cannot be read, or a line that is no measurement.
    """
    compressed = path.with_name(f"{path.name}.gz")
    try:
        if path.exists():
            text = path.read_text(encoding="utf-8")
        else:
            text = gzip.decompress(compressed.read_bytes()).decode("utf-8") if compressed.exists() else ""
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise RecordError(f"{path.name} cannot be read: {error}") from error
    lines = text[: text.rfind("\n") + 1].splitlines()
    numbers: list[int] = []
    seconds: list[float] = []
    columns: dict[tuple[Split, str], list[float]] = {(split, name): [] for split in SPLITS for name in sorted(names[split])}
    for index, line in enumerate(lines, 1):
        try:
            _take(parse_object(line), numbers, seconds, columns)
        except RecordError as error:
            raise RecordError(f"line {index} of {path.name} cannot be used: {error}") from error
    values = {key: np.array(column) for key, column in columns.items() if not np.isnan(column).all()}
    return Epochs(np.array(numbers, dtype=np.int64), np.array(seconds, dtype=np.float64), values)


def _take(
    record: Mapping[str, Any], numbers: list[int], seconds: list[float], columns: Mapping[tuple[Split, str], list[float]]
) -> None:
    epoch = whole_field(record, "epoch", least=numbers[-1] + 1 if numbers else 1)
    numbers.append(epoch)
    seconds.append(_or_nan(number_field(record, "seconds")))
    measured = {split: object_field(record, split) for split in SPLITS}
    for (split, name), column in columns.items():
        column.append(_or_nan(number_field(measured[split], name)))


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
