"""The records of a run: what was seen in each of its epochs, from the first, without a gap."""

import json
from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
PARTS = ("running", "train", "test")


def records_as_text(records: Sequence[Record]) -> str:
    """One line for each epoch."""
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def records_from_text(text: str) -> list[Record]:
    """The records that the lines are.

    Raises:
        ValueError: for a line that is no record, or epochs that are not 1, 2, 3, ...
    """
    return checked_records([json.loads(line) for line in text.splitlines()])


def checked_records(records: Any) -> list[Record]:
    """The records, if they are those of the epochs 1, 2, 3, ...

    Raises:
        ValueError: if they are not.
    """
    if not isinstance(records, list):
        raise ValueError(f"records must be a list; got {type(records).__name__}")
    for epoch, record in enumerate(records, 1):
        if not isinstance(record, dict) or type(record.get("epoch")) is not int or record["epoch"] != epoch:
            got = record.get("epoch") if isinstance(record, dict) else record
            raise ValueError(f"the record of epoch {epoch} is missing: got {got!r} in its place")
        for part in PARTS:
            if not _is_measurement(record.get(part, {})):
                raise ValueError(f"{part} of epoch {epoch} must be numbers by name; got {record[part]!r}")
    return records


def _is_measurement(values: Any) -> bool:
    return isinstance(values, dict) and all(value is None or type(value) in (int, float) for value in values.values())
