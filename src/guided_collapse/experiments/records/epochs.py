"""The measurements of a run, epoch by epoch."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from guided_collapse.experiments.records.contents import read_text
from guided_collapse.experiments.records.fields import RecordError, parse_object, told_of
from guided_collapse.experiments.records.schema import METRICS, METRICS_COMPRESSED, SPLITS, EpochRecord, Floats, Integers, Split


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

    @property
    def last(self) -> int:
        """The last epoch that is done; 0 before the first."""
        return len(self.numbers)

    def of(self, split: Split, name: str) -> Floats:
        """(num_epochs,), the values of one quantity."""
        return self.values.get((split, name), np.full(len(self.numbers), np.nan))

    def elapsed(self) -> Floats:
        """(num_epochs,), the training time up to the end of each epoch; NaN from where a time is missing."""
        return np.cumsum(self.seconds)


def records_as_text(records: Iterable[EpochRecord]) -> str:
    """The contents of `metrics.jsonl`: one line for each epoch."""
    return "".join(json.dumps(record.to_json(), allow_nan=False) + "\n" for record in records)


def records_from_text(text: str, name: str = METRICS) -> list[EpochRecord]:
    """The records that the lines of a file of this name are.

    Raises:
        RecordError: for a line that is no record, or epochs that are not 1, 2, 3, ...
    """
    records = []
    for number, line in enumerate(io.StringIO(text), 1):
        with told_of(f"line {number} of {name}"):
            records.append(EpochRecord.of_epoch(number, parse_object(line)))
    return records


def records_from_json(content: object) -> list[EpochRecord]:
    """The records in a list of JSON objects, as a checkpoint keeps them.

    Raises:
        RecordError: if it is no such list, or epochs are not 1, 2, 3, ...
    """
    if not isinstance(content, list):
        raise RecordError(f"records must be a list; got {type(content).__name__}")
    return [EpochRecord.of_epoch(number, entry) for number, entry in enumerate(content, 1)]


def read_epochs(folder: Path, names: Mapping[Split, frozenset[str]]) -> Epochs:
    """The measurements of the run in a folder, as `read_epoch_records` finds them.

    Args:
        folder: of the run.
        names: the quantities to take, by split.

    Raises:
        RecordError: as for `read_epoch_records`.
    """
    return in_columns(read_epoch_records(folder), names)


def read_epoch_records(folder: Path) -> list[EpochRecord]:
    """The records of the run in a folder; none if there is no file, as in a run that has just begun.

    A last line that was cut off while it was written is passed over. Records that are kept may be compressed.

    Raises:
        RecordError: for a file that cannot be read, a line that is no measurement, or epochs that are not 1, 2, 3 ...
    """
    for name in (METRICS, METRICS_COMPRESSED):
        text = read_text(folder / name)
        if text is not None:
            return records_from_text(text[: text.rfind("\n") + 1], name)
    return []


def in_columns(records: Sequence[EpochRecord], names: Mapping[Split, frozenset[str]]) -> Epochs:
    """What was measured of these quantities, as arrays over epochs."""
    columns = {
        (split, name): _column(record.measured(split).get(name) for record in records)
        for split in SPLITS
        for name in sorted(names[split])
    }
    values = {key: column for key, column in columns.items() if not np.isnan(column).all()}
    return Epochs(np.arange(1, len(records) + 1), _column(record.seconds for record in records), values)


def _column(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
