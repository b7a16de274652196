"""What heads cost, as `guided-collapse cost` recorded it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guided_collapse.records.contents import read_object
from guided_collapse.records.fields import RecordError, number_field, object_field, text_field, told_of
from guided_collapse.records.names import FORMAT

SETTING = ("batch_size", "feature_dim", "num_classes", "precision")


@dataclass(frozen=True)
class HeadCost:
    """Milliseconds of a training step with a head, those of the head and the loss alone, and megabytes at the peak.

    None where it was not measured.
    """

    head: str
    forward_ms: float | None
    backward_ms: float | None
    head_forward_ms: float | None
    head_backward_ms: float | None
    peak_mb: float | None
    note: str | None


@dataclass(frozen=True)
class CostRecord:
    """The costs of several heads in one experiment."""

    path: Path
    experiment: str
    rows: tuple[HeadCost, ...]
    setting: Mapping[str, int | str]
    """Batch size, precision and sizes, as far as they were recorded."""
    versions: Mapping[str, Any]
    hardware: Mapping[str, Any]


def read_cost(path: Path) -> CostRecord:
    """The costs in a file.

    Raises:
        RecordError: if the file is no such record.
    """
    record = read_object(path)
    rows = record.get("rows")
    if record.get("format") != FORMAT or record.get("kind") != "cost" or not isinstance(rows, list):
        raise RecordError(f"{path.name} must be a record of costs, with format {FORMAT}, kind cost and rows")
    with told_of(path.name):
        return CostRecord(
            path=path,
            experiment=text_field(record, "experiment"),
            rows=tuple(_row(row) for row in rows),
            setting={name: value for name in SETTING if isinstance(value := record.get(name), int | str)},
            versions=object_field(record, "versions"),
            hardware=object_field(record, "hardware"),
        )


def _row(row: object) -> HeadCost:
    if not isinstance(row, dict):
        raise RecordError(f"a row of costs must be an object; got {row!r}")
    return HeadCost(
        head=text_field(row, "head"),
        forward_ms=number_field(row, "forward_ms", least=0),
        backward_ms=number_field(row, "backward_ms", least=0),
        head_forward_ms=number_field(row, "head_forward_ms", least=0),
        head_backward_ms=number_field(row, "head_backward_ms", least=0),
        peak_mb=number_field(row, "peak_mb", least=0),
        note=None if row.get("note") is None else text_field(row, "note"),
    )
