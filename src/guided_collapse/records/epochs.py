"""The measurements of a run, epoch by epoch."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from guided_collapse.records.contents import read_text
from guided_collapse.records.fields import RecordError, number_field, object_field, parse_object, told_of, whole_field

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Epochs:
    """What `metrics.jsonl` holds, without what was seen while training: curves and tables rest on measurements in eval mode.

    Attributes:
        numbers: (num_epochs,), 1 ... num_epochs.
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
        """(num_epochs,), the training time up to the end of each epoch; NaN from where a time is missing."""
        return np.cumsum(self.seconds)


def read_epochs(path: Path, names: Mapping[Split, frozenset[str]]) -> Epochs:
    """The measurements in a file, or in its compressed form; none if there is no file, as in a run that has just begun.

    A last line that was cut off while it was written is passed over.

    Args:
        path: of `metrics.jsonl`; records that are kept may have `metrics.jsonl.gz` instead.
        names: the quantities to take, by split.

    Raises:
        RecordError: for a file that cannot be read, a line that is no measurement, or epochs that are not 1, 2, 3 ...
    """
    text = read_text(path)
    if text is None:
        path = path.with_name(f"{path.name}.gz")
        text = read_text(path) or ""
    seconds: list[float] = []
    columns: dict[tuple[Split, str], list[float]] = {(split, name): [] for split in SPLITS for name in sorted(names[split])}
    for number, line in enumerate(io.StringIO(text[: text.rfind("\n") + 1]), 1):
        with told_of(f"line {number} of {path.name}"):
            record = parse_object(line)
            if whole_field(record, "epoch") != number:
                raise RecordError(f"epochs must be 1, 2, 3 ... without a hole, here {number}; got {record['epoch']}")
            _take(record, seconds, columns)
    values = {key: np.array(column) for key, column in columns.items() if not np.isnan(column).all()}
    return Epochs(np.arange(1, len(seconds) + 1), np.array(seconds, dtype=np.float64), values)


def _take(record: Mapping[str, Any], seconds: list[float], columns: Mapping[tuple[Split, str], list[float]]) -> None:
    seconds.append(_or_nan(number_field(record, "seconds", least=0)))
    measured = {split: object_field(record, split) for split in SPLITS}
    for (split, name), column in columns.items():
        column.append(_or_nan(number_field(measured[split], name)))


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value
