"""Fields of a JSON record, checked as they are taken."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RecordError(ValueError):
    """A record that cannot be used, with the reason."""


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that the text is, with strings that can be written again and without NaN.

    Raises:
        RecordError: if the text is no JSON object.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it must be JSON; reading it failed: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"it must be a JSON object; got {type(value).__name__}")
    return {_writable(name): _writable(entry) for name, entry in value.items()}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        RecordError: if the file cannot be read or holds no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path.name} cannot be read: {error}") from error
    try:
        return parse_object(text)
    except RecordError as error:
        raise RecordError(f"{path.name} cannot be used: {error}") from error


def text_field(record: Mapping[str, Any], name: str) -> str:
    """A field that must be text."""
    value = record.get(name)
    if not isinstance(value, str):
        raise RecordError(f"{name} must be text; got {value!r}")
    return value


def whole_field(record: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """A field that must be a whole number."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**53:
        raise RecordError(f"{name} must be a whole number of at least {least}; got {value!r}")
    return value


def number_field(record: Mapping[str, Any], name: str) -> float | None:
    """A field that must be a finite number, or None where it is null or missing."""
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not -1e300 < value < 1e300 or not math.isfinite(value):
        raise RecordError(f"{name} must be a finite number or null; got {value!r}")
    return float(value)


def object_field(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that must be an object; empty where it is missing."""
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise RecordError(f"{name} must be an object; got {value!r}")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _writable(value: Any) -> Any:
    # JSON can hold halves of surrogate pairs, which no file in UTF-8 can.
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_writable(entry) for entry in value]
    if isinstance(value, dict):
        return {_writable(name): _writable(entry) for name, entry in value.items()}
    return value
