"""Fields of a JSON record, checked as they are taken, and records that are made of them."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_origin, get_type_hints

# Largest number of a record, far from where squares and powers of ten overflow, and most characters of one.
LARGEST = 1e100
MOST_CHARACTERS = 10_000_000
MOST_LEVELS = 100


Value = TypeVar("Value")
Take = Callable[[Mapping[str, Any], str], Value]
"""Takes the field of that name out of a JSON object, or says what is wrong with it."""


class RecordError(ValueError):
    """A record that cannot be used, with the reason."""


class Record:
    """A JSON object with the fields of a dataclass: those that are annotated with what takes them, in their order.

    `num_train: Annotated[int, whole_field]` is the field "num_train", which must be a whole number. Other fields of JSON are passed
    over, so that records of later versions can be read.
    """

    FIELDS: ClassVar[Mapping[str, Take[Any]]] = {}
    """What takes each field, by its name."""

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        cls.FIELDS = {name: hint.__metadata__[0] for name, hint in hints.items() if get_origin(hint) is Annotated}

    @classmethod
    def from_json(cls, content: object) -> Self:
        """The record that a JSON object holds.

        Raises:
            RecordError: if it is none, or a field is missing or of another kind.
        """
        if not isinstance(content, Mapping):
            raise RecordError(f"a record must be an object; got {content!r}")
        return cls(**{name: take(content, name) for name, take in cls.FIELDS.items()})

    def to_json(self) -> dict[str, Any]:
        """The JSON object that holds the record."""
        return {name: _plain(getattr(self, name)) for name in self.FIELDS}


def _listed(header: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} {value!r}" for name, value in header.items())


class VersionedRecord(Record):
    """A record that says of which version it is, and perhaps of which kind."""

    SAYS: ClassVar[str]
    """What it is the record of."""
    HEADER: ClassVar[Mapping[str, Any]]

    @classmethod
    def from_json(cls, content: object) -> Self:
        """As for every record, if the kind and the version are these."""
        got = {name: content.get(name) for name in cls.HEADER} if isinstance(content, Mapping) else {}
        if isinstance(content, Mapping) and got != cls.HEADER:
            raise RecordError(f"it must be the record of {cls.SAYS}, with {_listed(cls.HEADER)}; got {_listed(got)}")
        return super().from_json(content)

    def to_json(self) -> dict[str, Any]:
        """As for every record, after the kind and the version."""
        return {**self.HEADER, **super().to_json()}


Kind = TypeVar("Kind", bound=Record)


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value


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
        value = json.loads(text, parse_constant=_refuse)
        if not _is_simple(text):
            value = _writable(value)
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


def positive_field(record: Mapping[str, Any], name: str) -> float:
    """A field that must be a positive number."""
    value = number_field(record, name, least=0)
    if not value:
        raise RecordError(f"{name} must be a positive number; got {record.get(name)!r}")
    return value


def texts_field(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A field that must be a list of text; empty where it is missing."""
    value = record.get(name, [])
    if not (isinstance(value, list) and all(isinstance(entry, str) for entry in value)):
        raise RecordError(f"{name} must be a list of text; got {value!r}")
    return tuple(value)


def object_field(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that must be an object; empty where it is missing."""
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise RecordError(f"{name} must be an object; got {value!r}")
    return value


def each(kind: type[Kind]) -> Take[tuple[Kind, ...]]:
    """A field that must be a list of such records."""

    def take(record: Mapping[str, Any], name: str) -> tuple[Kind, ...]:
        value = record.get(name)
        if not isinstance(value, list):
            raise RecordError(f"{name} must be a list; got {value!r}")
        return tuple(kind.from_json(entry) for entry in value)

    return take


def any_number_of(kind: type[Kind]) -> Take[tuple[Kind, ...]]:
    """A field that must be a list of such records; empty where it is missing."""
    take = each(kind)
    return lambda record, name: take(record, name) if name in record else ()


def one(kind: type[Kind]) -> Take[Kind]:
    """A field that must be such a record."""

    def take(record: Mapping[str, Any], name: str) -> Kind:
        with told_of(name):
            return kind.from_json(record.get(name))

    return take


def or_none(take: Take[Value]) -> Take[Value | None]:
    """A field that may be null or missing."""
    return lambda record, name: None if record.get(name) is None else take(record, name)


def numbers_field(record: Mapping[str, Any], name: str) -> Mapping[str, float | None] | None:
    """A field that must be numbers by name, some of which may be null; None where it is missing."""
    if name not in record:
        return None
    values = object_field(record, name)
    with told_of(name):
        for entry in values:
            number_field(values, entry)
    return values


def wholes_field(record: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A field that must be a list of whole numbers."""
    value = record.get(name)
    if not (isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)):
        raise RecordError(f"{name} must be a list of whole numbers; got {value!r}")
    return tuple(value)


def shape_field(record: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    """A field that must be the channels, height and width of an image."""
    value = record.get(name)
    if not (isinstance(value, list) and len(value) == 3 and all(type(size) is int and size > 0 for size in value)):
        raise RecordError(f"{name} must be three positive whole numbers; got {value!r}")
    channels, height, width = value
    return channels, height, width


def channels_field(record: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """A field that must be a list of numbers."""
    value = record.get(name)
    if not (isinstance(value, list) and all(type(number) in (int, float) for number in value)):
        raise RecordError(f"{name} must be a number for each channel; got {value!r}")
    return tuple(value)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number of JSON")


def _is_simple(text: str) -> bool:
    """Whether the text of JSON, read from a file, can hold neither half a surrogate pair nor too many levels; most records do."""
    return "\\u" not in text and text.count("[") + text.count("{") <= MOST_LEVELS


def _writable(value: Any, levels: int = MOST_LEVELS) -> Any:
    # JSON can hold halves of surrogate pairs, which no file in UTF-8 can.
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if levels == 0:
        raise ValueError(f"it must have at most {MOST_LEVELS} lists and objects inside each other")
    if isinstance(value, list):
        return [_writable(entry, levels - 1) for entry in value]
    if isinstance(value, dict):
        return {_writable(name): _writable(entry, levels - 1) for name, entry in value.items()}
    return value


Text = Annotated[str, text_field]
Whole = Annotated[int, whole_field]
Positive = Annotated[int, functools.partial(whole_field, least=1)]
AtLeastTwo = Annotated[int, functools.partial(whole_field, least=2)]
Number = Annotated[float | None, number_field]
Amount = Annotated[float | None, functools.partial(number_field, least=0)]
PositiveNumber = Annotated[float, positive_field]
Object = Annotated[Mapping[str, Any], object_field]
Numbers = Annotated[Mapping[str, float | None] | None, numbers_field]
MaybeNumbers = Annotated[Mapping[str, float | None] | None, or_none(numbers_field)]
MaybeText = Annotated[str | None, or_none(text_field)]
MaybeWhole = Annotated[int | None, or_none(whole_field)]
MaybeObject = Annotated[Mapping[str, Any] | None, or_none(object_field)]
Wholes = Annotated[tuple[int, ...], wholes_field]
Texts = Annotated[tuple[str, ...], texts_field]
Shape = Annotated[tuple[int, int, int], shape_field]
Channels = Annotated[tuple[float, ...], channels_field]
