"""Fields of a JSON record, checked as they are taken."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Largest number of a record, far from where squares and powers of ten overflow, and most characters of one.
LARGEST = 1e100
MOST_CHARACTERS = 10_000_000


class RecordError(ValueError):
    """A record that cannot be used, with the reason."""


@contextmanager
def told_of(place: str) -> Iterator[None]:
    """What cannot be used inside is said to be of that place: a file or a line."""
    try:
        yield
    except RecordError as error:
        raise RecordError(f"{place} cannot be used: {error}") from error


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that the text is, with strings that can be written again and without NaN.

    Raises:
        RecordError: if the text is no JSON object.
    """
    if len(text) > MOST_CHARACTERS:
        raise RecordError(f"it must have at most {MOST_CHARACTERS} characters; got {len(text)}")
    try:
        value = _writable(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"it must be JSON; reading it failed: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"it must be a JSON object; got {type(value).__name__}")
    return value


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


def number_field(record: Mapping[str, Any], name: str, *, least: float = -LARGEST) -> float | None:
    """A field that must be a number, or None where it is null or missing."""
    value = record.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= LARGEST:
        raise RecordError(f"{name} must be a number from {least:g} to {LARGEST:g} or null; got {value!r}")
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
