"""Which numbers a field may have."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGEST_COUNT = 2**31 - 1
LARGEST_NUMBER = 1e9  # beyond every rate, factor and time that could be meant, and far from where float32 ends
SMALLEST_NUMBER = 1e-37  # less is zero in float32


class Range(NamedTuple):
    """Numbers from `lowest` to `highest`, in words: "positive", "from 0 to 180"."""

    words: str
    lowest: float
    highest: float = LARGEST_NUMBER
    whole: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuses what is no such number.

        Raises:
            ValueError: with the range and the value.
        """
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            raise ValueError(f"{name} must be a {'whole ' if self.whole else ''}number; got {value!r}.")
        limit = LARGEST_COUNT if self.whole else LARGEST_NUMBER
        if value > limit:
            raise ValueError(f"{name} must be at most {limit:.0f}; got {value}.")
        if not self.lowest <= value <= self.highest:  # nor is NaN
            raise ValueError(f"{name} must be {self.words}; got {value}.")


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
        ValueError: with the range and the value.
    """
    may_be_none = {field.name for field in fields(values) if field.default is None}
    for name, allowed in ranges.items():
        value = getattr(values, name)
        if value is not None or name not in may_be_none:
            allowed.check(name, value)
