"""Whole numbers, as callers give them."""

import operator
from typing import SupportsIndex


def whole_number(value: SupportsIndex, name: str) -> int:
    """The value as an int, if it is a whole number of any kind, numpy's and torch's among them.

    Raises:
        ValueError: for another value, with its name.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number; got {value!r}.") from None


def source_number(value: SupportsIndex, name: str) -> int:
    """The value as an int, if it is a whole number that numpy's generators take as a seed.

    Raises:
        ValueError: for another value, with its name.
    """
    number = whole_number(value, name)
    if number < 0:
        raise ValueError(f"{name} must not be negative; got {number}.")
    return number
