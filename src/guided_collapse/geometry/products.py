"""The solver "products": polar factors by matrix products alone, which accelerators do best and every derivative goes through.

A composition of odd polynomials p(x) = a x + b x^3 + c x^5 that takes every singular value of an interval to 1 takes a matrix to
its polar factor, by X <- a X + (b A + c A^2) X with A = XX'. The best composition takes at each step the polynomial closest to 1 on
the interval that the previous step left ("The Polar Express", Amsel and others, 2025).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from guided_collapse.geometry.operations import ClosedGradient, add_product, constant_in_graphs, product
from guided_collapse.geometry.simplex import center_classes, centered_unit

# The best polynomial for a wide interval takes some large values almost to 0, where their rounding errors drown the small ones. So
# each is made for an interval whose ends have at least this ratio, and grows what lies below it.
LEAST_RATIO = 0.2

# So far below the end of the next one's interval each ends: rounding must not lead outside, where polynomials grow what they get.
MARGIN = 1e-5

# From the first on the polynomial of the interval is that of its limit, the point 1, to the digits that matter. The second is how
# far from 1 the composition may leave a singular value: its error cubed is below the rounding unit.
NEARLY_ONE, TOLERANCE = 1e-2, {torch.float32: 3e-3, torch.float64: 1e-5}

# The pull that stands for none, relative to the singular values of collapsed means; the frame is that far from the limit.
VANISHING_PULL = 1e-3

# Singular values are trusted down to this share of the proximal weight. They fall below it only where the means oppose the proximal
# basis and are as large as the weight.
SAFETY = 1e-2

# Nothing below this can be told from rounding errors, relative to the norm of X.
SMALLEST = {torch.float32: 1e-7, torch.float64: 1e-14}


class OddPolynomial(NamedTuple):
    """a x + b x^3 + c x^5."""

    first: float
    third: float
    fifth: float

    def __call__(self, value: float) -> float:
        """Returns the polynomial at a point."""
        return self.first * value + self.third * value**3 + self.fifth * value**5


@lru_cache(maxsize=256)
def polar_polynomials(smallest: float, dtype: torch.dtype = torch.float64) -> tuple[OddPolynomial, ...]:
    """Returns polynomials whose composition takes every number from `smallest` to 1 to 1, to the rounding of the dtype."""
    low, high = smallest, 1.0
    polynomials = []
    while 1 - low / high > TOLERANCE[dtype]:
        start = max(low, LEAST_RATIO)
        polynomial = _nearest_to_one(start, 1.0)
        # It rises up to `start` and beyond; from there on it stays as close to 1 as it is at `start`.
        least, largest = polynomial(low), 2 - polynomial(start)
        end = largest * (1 + MARGIN)
        polynomials.append(OddPolynomial(*(coefficient / end for coefficient in polynomial)))
        low, high = least / largest / (1 + MARGIN), 1 / (1 + MARGIN)
    return (*polynomials, _at_one(high))


def _at_one(scale: float) -> OddPolynomial:
    """(15 x - 10 x^3 + 3 x^5)/8 of x over the scale: the limit of the best polynomial on a narrow interval about the scale."""
    return OddPolynomial(15 / 8 / scale, -10 / 8 / scale**3, 3 / 8 / scale**5)


def _nearest_to_one(low: float, high: float) -> OddPolynomial:
    """Returns the odd polynomial of degree 5 whose largest distance from 1 on [low, high] is smallest (Remez exchange).

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


def _forward(matrix: Tensor, *, polynomials: tuple[OddPolynomial, ...]) -> tuple[Tensor, ...]:
    """Returns the polar factor, and for each polynomial the matrix X that it takes, A = XX', and b A + c A^2."""
    needed: list[Tensor] = []
    for first, third, fifth in polynomials:
        gram = product(matrix, matrix.T)
        higher = add_product(third, gram, fifth, gram, gram)
        needed += matrix, gram, higher
        matrix = add_product(first, matrix, 1.0, higher, matrix)
    return matrix, *needed


def _backward(grad: Tensor, needed: list[Tensor], matrix: Tensor, *, polynomials: tuple[OddPolynomial, ...]) -> tuple[Tensor]:
    """Returns the gradient with respect to X, given that of its polar factor, through one polynomial after another."""
    for first, third, fifth in reversed(polynomials):
        *needed, matrix, gram, higher = needed
        grad_higher = product(grad, matrix.T)
        grad_higher = grad_higher + grad_higher.T
        grad_gram = add_product(third / 2, grad_higher, fifth, grad_higher, gram)
        grad = add_product(first, grad, 1.0, higher, grad)
        grad = add_product(1.0, grad, 1.0, grad_gram + grad_gram.T, matrix)
    return (grad,)


polar_by_products = ClosedGradient(_forward, _backward)
"""Returns the polar factor of X, wide with singular values in the interval of given polynomials; all derivatives exist."""


def vanishing_pull(num_classes: int, proximal_weight: float) -> float:
    """Returns the weight that stands for none, on the first step and where none is asked for: at most delta, unless that is 0.

    For a tight frame, num_classes is feature_dim + 1.
    """
    vanishing = VANISHING_PULL * 2 / (num_classes - 1)
    return min(vanishing, proximal_weight) if proximal_weight > 0 else vanishing


@constant_in_graphs
def _bound_and_polynomials(rank: int, proximal_weight: float, dtype: torch.dtype) -> tuple[float, tuple[OddPolynomial, ...]]:
    """Returns an upper bound of |X|_F and the polynomials for every X over it that a training run meets, without a look at one."""
    vanishing = vanishing_pull(rank + 1, proximal_weight)
    least = min(0.3 * vanishing, SAFETY * proximal_weight) if proximal_weight > 0 else 0.3 * vanishing
    bounds = [2 / math.sqrt(rank) + pull * math.sqrt(rank + 1) for pull in (proximal_weight, max(proximal_weight, vanishing))]
    return bounds[1], polar_polynomials(max(least / bounds[0], SMALLEST[dtype]), dtype)


def rows_by_products(means: Tensor, proximal: Tensor, proximal_weight: float, first_step: bool | Tensor = False) -> Tensor:
    """Returns U', (num_classes, feature_dim), of the frame nearest to the means, with all derivatives.

    The problem is that of `rows_by_factors`, with `vanishing_pull` for delta = 0 and on the first step. No factorization, no
    float64, nothing that synchronizes with the device.
    """
    num_classes, feature_dim = means.shape
    rank = min(feature_dim, num_classes - 1)
    bound, polynomials = _bound_and_polynomials(rank, proximal_weight, means.dtype)
    vanishing = vanishing_pull(rank + 1, proximal_weight)
    first_pull, pull = vanishing / bound, max(proximal_weight, vanishing) / bound
    if isinstance(first_step, Tensor):
        # Not torch.where, which would round the two numbers to float32.
        pulled = proximal * (first_step.to(means.dtype) * (first_pull - pull) + pull)
    else:
        pulled = proximal * (first_pull if first_step else pull)
    data, scale = centered_unit(means), 2 / math.sqrt(rank) / bound
    if feature_dim >= num_classes:
        return polar_by_products(torch.add(pulled, data, alpha=scale), polynomials=polynomials)
    # Only num_classes - 1 columns fit into feature space: the same problem on the complement of 1.
    return polar_by_products(torch.add(center_classes(pulled), data, alpha=scale).T, polynomials=polynomials).T
