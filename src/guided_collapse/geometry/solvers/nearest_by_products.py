"""The basis of the nearest simplex ETF by matrix products alone: no factorization, no float64, nothing that waits for a device."""

import math

import torch
from torch import Tensor

from guided_collapse.geometry.registration import constant_in_graphs
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.solvers.products import OddPolynomial, polar_by_products, polar_polynomials

# The pull toward the initial direction that stands for none, relative to the singular values of collapsed means. The frame is then
# that far from the documented limit, relative to 1.
VANISHING_PULL = 1e-3

# Singular values are trusted down to this share of the proximal weight. They fall below it only where the means stand against the
# proximal basis and are as large as the weight.
SAFETY = 1e-2

# Nothing below this can be told from rounding errors, relative to the norm of X.
SMALLEST = {torch.float32: 1e-7, torch.float64: 1e-14}


def vanishing_pull(num_classes: int, proximal_weight: float) -> float:
    """The proximal weight in the place of none: on the first step, and where none is asked for."""
    vanishing = VANISHING_PULL * 2 / (num_classes - 1)
    return min(vanishing, proximal_weight) if proximal_weight > 0 else vanishing


def norm_bound(num_classes: int, proximal_weight: float) -> float:
    """An upper bound of |X|_F for X = 2 H~ M~ + delta U_prox."""
    return 2 / math.sqrt(num_classes - 1) + proximal_weight * math.sqrt(num_classes)


@constant_in_graphs
def polynomials_of(num_classes: int, proximal_weight: float, dtype: torch.dtype) -> tuple[OddPolynomial, ...]:
    """The polynomials for every X that a training run meets, known without a look at one.

    Args:
        num_classes: C.
        proximal_weight: delta.
        dtype: float32 or float64.
    """
    least = 0.3 * vanishing_pull(num_classes, proximal_weight)
    if proximal_weight > 0:
        least = min(least, SAFETY * proximal_weight)
    return polar_polynomials(max(least / norm_bound(num_classes, proximal_weight), SMALLEST[dtype]))


def nearest_basis_by_products(
    unit_means: Tensor,
    proximal_basis: Tensor,
    pull: Tensor | float,
    *,
    proximal_weight: float,
    polynomials: tuple[OddPolynomial, ...],
) -> Tensor:
    """The basis U of the simplex ETF nearest to the means, differentiable in them any number of times.

    It is the polar factor of X = 2 H~ M~ + pull U_prox, as `operations.nearest_basis` has it. For num_classes > feature_dim + 1,
    where only a tight frame exists, it is that of 2 H~ P / sqrt(d) + pull U_prox, and feature_dim + 1 stands for num_classes.

    Args:
        unit_means: H~, (num_classes, feature_dim), centered class means of unit Frobenius norm, or zero.
        proximal_basis: U_prox, (feature_dim, num_classes), of the same dtype, float32 or float64.
        pull: delta, or on the first step `vanishing_pull`; a number or a scalar tensor.
        proximal_weight: delta, the largest that the pull can be.
        polynomials: from `polynomials_of`.

    Returns:
        (feature_dim, num_classes).
    """
    num_classes, feature_dim = unit_means.shape
    rank = min(feature_dim, num_classes - 1)
    bound = norm_bound(rank + 1, proximal_weight)
    data = center_classes(unit_means) * (2 / math.sqrt(rank) / bound)
    if feature_dim >= num_classes:
        return polar_by_products(data + proximal_basis.T * (pull / bound), polynomials).T
    # Only num_classes - 1 columns fit into feature space: the same problem on the complement of 1.
    return polar_by_products((data + center_classes(proximal_basis.T) * (pull / bound)).T, polynomials)
