"""The solver "products": polar factors from matrix products alone, fast on accelerators and differentiable any number of times.

The polar factor of a matrix X is X with every singular value replaced by 1. It is computed by a composition of odd polynomials
p(x) = a x + b x^3 + c x^5 that maps an interval containing all singular values of X to 1, up to rounding errors. Applied to a
matrix, a polynomial is the update X <- a X + (b A + c A^2) X with A = XX'. In the best composition, each polynomial is the one
closest to 1 on the image of the interval under its predecessors ("The Polar Express", Amsel et al., 2025).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from guided_collapse.geometry.operations import ClosedGradient, add_product, constant_in_graphs, product
from guided_collapse.geometry.simplex import center_classes, centered_unit

# On a wide interval, the best polynomial maps some large values almost to 0, where their rounding errors swamp small values. So
# every polynomial is built for an interval [r, 1] with r at least LEAST_RATIO; values smaller than r are only enlarged.
LEAST_RATIO = 0.2

# Each polynomial maps into the next interval and leaves this relative margin below the interval's upper end, because rounding
# errors beyond that end would be amplified.
MARGIN = 1e-5

# On intervals narrower than NEARLY_ONE, the best polynomial agrees, in all digits that matter, with its limit for an interval that
# shrinks to a point. The last polynomial receives singular values within TOLERANCE of 1 and cubes their error, which then is below
# the unit roundoff.
NEARLY_ONE, TOLERANCE = 1e-2, {torch.float32: 3e-3, torch.float64: 1e-5}

# The small proximal weight that replaces zero, relative to the singular values of collapsed means. It is also about the distance
# between the resulting frame and the limit for a vanishing weight.
VANISHING_PULL = 1e-3

# Singular values of X are assumed to be at least this fraction of the proximal weight. They are smaller only if the singular values
# of the means are about as large as that weight and the means point against the proximal basis.
SAFETY = 1e-2

# Singular values below this fraction of the norm of X are indistinguishable from rounding errors.
SMALLEST = {torch.float32: 1e-7, torch.float64: 1e-14}


class OddPolynomial(NamedTuple):
    """The polynomial a x + b x^3 + c x^5."""

    first: float
    third: float
    fifth: float

    def __call__(self, value: float) -> float:
        """Returns the value of the polynomial at a point."""
        return self.first * value + self.third * value**3 + self.fifth * value**5


@lru_cache(maxsize=256)
def polar_polynomials(smallest: float, dtype: torch.dtype = torch.float64) -> tuple[OddPolynomial, ...]:
    """Returns polynomials whose composition maps the interval [smallest, 1] to 1, up to the unit roundoff of the dtype."""
    low, high = smallest, 1.0
    polynomials = []
    while 1 - low / high > TOLERANCE[dtype]:
        start = max(low, LEAST_RATIO)
        polynomial = _nearest_to_one(start, 1.0)
        # The polynomial increases up to `start`; from there on, its values are at least as close to 1 as at `start`.
        least, largest = polynomial(low), 2 - polynomial(start)
        end = largest * (1 + MARGIN)
        polynomials.append(OddPolynomial(*(coefficient / end for coefficient in polynomial)))
        low, high = least / largest / (1 + MARGIN), 1 / (1 + MARGIN)
    return (*polynomials, _at_one(high))


def _at_one(scale: float) -> OddPolynomial:
    """Returns (15 y - 10 y^3 + 3 y^5) / 8, y = x / scale: the limit of the best polynomial as the interval shrinks to `scale`."""
    return OddPolynomial(15 / 8 / scale, -10 / 8 / scale**3, 3 / 8 / scale**5)


def _nearest_to_one(low: float, high: float) -> OddPolynomial:
    """Returns the odd quintic polynomial with the least maximum error |p(x) - 1| on [low, high], by Remez exchange.

    The error has its maximum at four points with alternating signs: below 1 at `low` and `outer`, above 1 at `inner` and `high`.
    """
    if 1 - low / high < NEARLY_ONE:
        return _at_one((low + high) / 2)
    inner, outer = (3 * low + high) / 4, (low + 3 * high) / 4
    distance = 0.0
    while True:
        rows = [[x, x**3, x**5, sign] for x, sign in ((low, 1.0), (inner, -1.0), (outer, 1.0), (high, -1.0))]
        first, third, fifth, found = np.linalg.solve(np.array(rows), np.ones(4)).tolist()
        if found <= distance * (1 + 1e-12):  # `found` increases until it is the error of the best polynomial
            return OddPolynomial(first, third, fifth)
        distance = found
        root = math.sqrt(9 * third**2 - 20 * first * fifth)
        inner, outer = (math.sqrt((-3 * third + sign * root) / (10 * fifth)) for sign in (-1.0, 1.0))


def _forward(matrix: Tensor, *, polynomials: tuple[OddPolynomial, ...]) -> tuple[Tensor, ...]:
    """Returns the polar factor, followed by three tensors to save for each polynomial: its input X, A = XX', and b A + c A^2."""
    needed: list[Tensor] = []
    for first, third, fifth in polynomials:
        gram = product(matrix, matrix.T)
        higher = add_product(third, gram, fifth, gram, gram)
        needed += matrix, gram, higher
        matrix = add_product(first, matrix, 1.0, higher, matrix)
    return matrix, *needed


def _backward(grad: Tensor, needed: list[Tensor], matrix: Tensor, *, polynomials: tuple[OddPolynomial, ...]) -> tuple[Tensor]:
    """Returns the gradient with respect to X, given the gradient with respect to its polar factor."""
    for first, third, fifth in reversed(polynomials):
        *needed, matrix, gram, higher = needed
        grad_higher = product(grad, matrix.T)
        grad_higher = grad_higher + grad_higher.T
        grad_gram = add_product(third / 2, grad_higher, fifth, grad_higher, gram)
        grad = add_product(first, grad, 1.0, higher, grad)
        grad = add_product(1.0, grad, 1.0, grad_gram + grad_gram.T, matrix)
    return (grad,)


polar_by_products = ClosedGradient(_forward, _backward)
"""Returns the polar factor of a wide matrix whose singular values lie in the interval of the polynomials."""


def vanishing_pull(num_classes: int, proximal_weight: float) -> float:
    """Returns the small proximal weight that stands in for a vanishing one: at most delta, unless delta is 0.

    For a tight frame, pass feature_dim + 1 as num_classes.
    """
    vanishing = VANISHING_PULL * 2 / (num_classes - 1)
    return min(vanishing, proximal_weight) if proximal_weight > 0 else vanishing


@constant_in_graphs
def _bound_and_polynomials(rank: int, proximal_weight: float, dtype: torch.dtype) -> tuple[float, tuple[OddPolynomial, ...]]:
    """Returns an upper bound on |X|_F, and the polynomials for X divided by this bound. Neither depends on the values in X."""
    vanishing = vanishing_pull(rank + 1, proximal_weight)
    least = min(0.3 * vanishing, SAFETY * proximal_weight) if proximal_weight > 0 else 0.3 * vanishing
    bounds = [2 / math.sqrt(rank) + pull * math.sqrt(rank + 1) for pull in (proximal_weight, max(proximal_weight, vanishing))]
    return bounds[1], polar_polynomials(max(least / bounds[0], SMALLEST[dtype]), dtype)


def rows_by_products(means: Tensor, proximal: Tensor, proximal_weight: float, first_step: bool | Tensor = False) -> Tensor:
    """Returns U', (num_classes, feature_dim), of the frame nearest to the means, differentiable any number of times.

    Solves the same problem as `rows_by_factors`, except that `vanishing_pull` replaces delta if delta is 0, and on the first step.
    Needs neither a factorization nor float64, and never synchronizes with the device.
    """
    num_classes, feature_dim = means.shape
    rank = min(feature_dim, num_classes - 1)
    bound, polynomials = _bound_and_polynomials(rank, proximal_weight, means.dtype)
    vanishing = vanishing_pull(rank + 1, proximal_weight)
    first_pull, pull = vanishing / bound, max(proximal_weight, vanishing) / bound
    if isinstance(first_step, Tensor):
        # Not torch.where, which would round both numbers to float32.
        pulled = proximal * (first_step.to(means.dtype) * (first_pull - pull) + pull)
    else:
        pulled = proximal * (first_pull if first_step else pull)
    data, scale = centered_unit(means), 2 / math.sqrt(rank) / bound
    if feature_dim >= num_classes:
        return polar_by_products(torch.add(pulled, data, alpha=scale), polynomials=polynomials)
    # There is no room for num_classes orthonormal columns: solve the problem on the complement of 1.
    return polar_by_products(torch.add(center_classes(pulled), data, alpha=scale).T, polynomials=polynomials).T
