"""The polar factor by matrix products alone: what accelerators do best, and what any order and mode of derivative goes through.

A composition of odd polynomials p(x) = a x + b x^3 + c x^5 that takes every singular value of an interval to 1 takes a matrix to
its polar factor, by X <- a X + (b A + c A^2) X with A = XX'. The best composition takes at each step the polynomial that is nearest
to 1 on the interval the step before left ("The Polar Express", Amsel and others, 2025).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from torch import Tensor

from guided_collapse.geometry.solvers.exact_products import add_product, product

# The best polynomial for a wide interval takes some large values almost to 0, where their rounding errors drown the small ones. So
# each is made for an interval whose ends have at least this ratio, and grows what lies below it. It costs one polynomial more, and
# float32 gradients gain two digits.
LEAST_RATIO = 0.2

# Beyond its interval a polynomial grows what it is given, and so does the next. So each ends this far below the end of the next
# one's interval, which is more than rounding in float32 can add.
MARGIN = 1e-5

# From here on the polynomial of the interval is that of its limit, the point 1, to the digits that matter.
NEARLY_ONE = 1e-2

# How far from 1 the composition may leave a singular value: its error cubed is below the rounding unit of float64.
TOLERANCE = 1e-5


class OddPolynomial(NamedTuple):
    """a x + b x^3 + c x^5."""

    first: float
    third: float
    fifth: float

    def __call__(self, value: float) -> float:
        """The polynomial at a point."""
        return self.first * value + self.third * value**3 + self.fifth * value**5

    def divided_by(self, factor: float) -> "OddPolynomial":
        """The polynomial over a number."""
        return OddPolynomial(self.first / factor, self.third / factor, self.fifth / factor)


@lru_cache(maxsize=256)
def polar_polynomials(smallest: float) -> tuple[OddPolynomial, ...]:
    """Polynomials whose composition takes every number from `smallest` to 1 to 1, to the rounding of float64.

    Args:
        smallest: above 0 and at most 1. Smaller numbers are still grown, but fall short of 1.
    """
    low, high = smallest, 1.0
    polynomials = []
    while 1 - low / high > TOLERANCE:
        start = max(low, LEAST_RATIO)
        polynomial = _nearest_to_one(start, 1.0)
        # It rises up to `start` and beyond; from there on it stays as near to 1 as it is at `start`.
        least, largest = polynomial(low), 2 - polynomial(start)
        polynomials.append(polynomial.divided_by(largest * (1 + MARGIN)))
        low, high = least / largest / (1 + MARGIN), 1 / (1 + MARGIN)
    return (*polynomials, _at_one(high))


def polar_by_products(matrix: Tensor, polynomials: tuple[OddPolynomial, ...]) -> Tensor:
    """The polar factor U of X = S U, with U U' = I and S symmetric, positive definite.

    Differentiable any number of times, in reverse and forward mode, under vmap and in every compiler.

    Args:
        matrix: X, (num_rows, num_columns) with num_rows <= num_columns, and singular values in the interval that the
            polynomials are for.
        polynomials: from `polar_polynomials`.

    Returns:
        (num_rows, num_columns), of the same dtype.
    """
    for first, third, fifth in polynomials:
        gram = product(matrix, matrix.T)
        higher = add_product(third, gram, fifth, gram, gram)
        matrix = add_product(first, matrix, 1.0, higher, matrix)
    return matrix


def _at_one(scale: float) -> OddPolynomial:
    """(15 x - 10 x^3 + 3 x^5)/8 of x over the scale: the limit of the best polynomial on a narrow interval about the scale."""
    return OddPolynomial(15 / 8 / scale, -10 / 8 / scale**3, 3 / 8 / scale**5)


def _nearest_to_one(low: float, high: float) -> OddPolynomial:
    """The odd polynomial of degree 5 whose largest distance from 1 on [low, high] is the smallest (Remez's exchange).

    It is below 1 by that distance at `low` and at the outer of two points inside, and above 1 by it at the inner one and at `high`.
    """
    if 1 - low / high < NEARLY_ONE:
        return _at_one((low + high) / 2)
    inner, outer = (3 * low + high) / 4, (low + 3 * high) / 4
    distance = 0.0
    while True:
        rows = [[x, x**3, x**5, sign] for x, sign in ((low, 1.0), (inner, -1.0), (outer, 1.0), (high, -1.0))]
        first, third, fifth, found = np.linalg.solve(np.array(rows), np.ones(4)).tolist()
        if found <= distance * (1 + 1e-12):  # each exchange raises it, until it is that of the best polynomial
            return OddPolynomial(first, third, fifth)
        distance = found
        root = math.sqrt(9 * third**2 - 20 * first * fifth)
        inner, outer = (math.sqrt((-3 * third + sign * root) / (10 * fifth)) for sign in (-1.0, 1.0))
