"""Which values a field may have: numbers of a range, names of a list, values of a type."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, get_args, get_origin

from guided_collapse.experiments.errors import RequestError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST_COUNT = 2**31 - 1
LARGEST_NUMBER = 1e9  # beyond every rate, factor and time that could be meant, and far from where float32 ends
SMALLEST_NUMBER = 1e-37  # less is zero in float32
LONGEST_NAME = 200  # bytes; file systems take 255, and files beside it have longer names


class Range(NamedTuple):
    """Numbers from `lowest` to `highest`, in words: "positive", "from 0 to 180"."""

    words: str
    lowest: float
    highest: float = LARGEST_NUMBER
    whole: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuses what is no such number.

        Raises:
            RequestError: with the range and the value.
        """
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            raise RequestError(f"{name} must be a {'whole ' if self.whole else ''}number; got {value!r}.")
        limit = LARGEST_COUNT if self.whole else LARGEST_NUMBER
        if value > limit:
            raise RequestError(f"{name} must be at most {limit:.0f}; got {value}.")
        if not self.lowest <= value <= self.highest:  # nor is NaN
            raise RequestError(f"{name} must be {self.words}; got {value}.")


POSITIVE = Range("positive", SMALLEST_NUMBER)
NOT_NEGATIVE = Range("a number that is not negative", 0.0)
POSITIVE_COUNT = Range("positive", 1, LARGEST_COUNT, whole=True)
COUNT = Range("a whole number that is not negative", 0, LARGEST_COUNT, whole=True)


def at_least(lowest: int) -> Range:
    """Whole numbers from there on."""
    return Range(f"at least {lowest}", lowest, LARGEST_COUNT, whole=True)


def check_ranges(values: "DataclassInstance", ranges: Mapping[str, Range]) -> None:
    """Refuses the first field that is out of its range; None is for those with None as their default.

    Raises:
        RequestError: with the range and the value.
    """
    may_be_none = {field.name for field in fields(values) if field.default is None}
    for name, allowed in ranges.items():
        value = getattr(values, name)
        if value is not None or name not in may_be_none:
            allowed.check(name, value)


_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def check_type(name: str, value: object, kind: Any) -> None:
    """Refuses a value that is not of the type of its field; a whole number is a float too, and a bool is no number.

    Raises:
        RequestError: with the type and the value.
    """
    optional = get_origin(kind) in (Union, UnionType)
    if optional and value is None:
        return
    (kind,) = set(get_args(kind)) - {NoneType} if optional else {kind}
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
    elif type(value) is not kind and not (kind is float and type(value) is int):
        raise RequestError(f"{name} must be {_TYPE_NAMES[kind]}{' or null' if optional else ''}; got {value!r}.")


def check_choice(name: str, value: object, legal: Sequence[object]) -> None:
    """Refuses what is not among the legal values.

    Raises:
        RequestError: with the nearest ones and all of them.
    """
    if value in legal:
        return
    near = get_close_matches(str(value), [str(choice) for choice in legal], n=2)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    raise RequestError(f"{name} must be one of {', '.join(str(choice) for choice in legal)}; got {value!r}.{guess}")


def check_folder_name(name: str, value: str) -> None:
    """Refuses what cannot be, or had better not be, the name of a folder.

    Raises:
        RequestError: with the value, cut off if it is long.
    """
    hidden_or_spaced = value.startswith(".") or value != value.strip()
    if not value or hidden_or_spaced or not value.isprintable() or set(value) & set("/\\") or len(value.encode()) > LONGEST_NAME:
        shown = value if len(value) <= LONGEST_NAME else f"{value[:20]}... of {len(value.encode(errors='replace'))} bytes"
        raise RequestError(
            f"{name} must be the name of a folder: not empty, without / and \\, not beginning with a dot or a space, printable, "
            f"and at most {LONGEST_NAME} bytes; got {shown!r}. For another place, give --out."
        )
