"""Narrower and wider forms of a network."""

import math


def scaled(num_channels: int, width: float) -> int:
    """width x num_channels, rounded to the nearest whole number (halves to the even one), and at least 1.

    Raises:
        ValueError: for a width that is not positive and finite.
    """
    if not (width > 0 and math.isfinite(width)):
        raise ValueError(f"width must be a positive, finite number; got {width}.")
    return max(1, round(width * num_channels))
