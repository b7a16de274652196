"""Unit rows for a tight frame."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.nearest import Solver
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.tight.roots import polar_columns_by_products
from guided_collapse.geometry.tight.rounds import alternate, is_zero_row, polar_columns
from guided_collapse.geometry.tight.settling import SETTLING_PULL, next_scales, settle

# How far one of the first rounds goes toward the target, whose rows have norm 1 in the mean as those of the frame have.
PULL = 0.3

# So many rounds are too few for scales to settle.
FEW_ROUNDS = 3

# What counts as the least square of what a row leaves over, as a share of the mean.
LEAST_SPARE_SHARE = 1e-2


def can_be_centered(num_classes: int, feature_dim: int) -> bool:
    """Whether the rounds keep the rows' sum at zero, for num_classes > feature_dim + 1.

    They do not in one dimension, nor for num_classes = feature_dim + 2: unit rows are then given by signs (their own, or those of
    the one dimension that the frame and its mean leave over), and an odd number of signs does not sum to zero. No frame
    with unit rows is tight and centered there if num_classes is odd, and steps between signs do not lead to one if it is even.
    """
    return feature_dim > 1 and num_classes > feature_dim + 2


def num_spare_columns(num_classes: int, feature_dim: int) -> int:
    """How many orthonormal columns complete those of a frame (and 1, if it is centered) to a basis of all of R^C."""
    return num_classes - feature_dim - can_be_centered(num_classes, feature_dim)


def evens_by_spare_rows(num_classes: int, feature_dim: int) -> bool:
    """Whether rounds without a pull work on the rows that complete the frame: they are shorter, for C little above d."""
    return num_spare_columns(num_classes, feature_dim) < feature_dim


def with_unit_rows(columns: Tensor, target: Tensor, fallback: Tensor, *, rounds: int, solver: Solver) -> Tensor:
    """A frame with unit rows, nearly tight, near to the target: rounds that are pulled to it, then twice as many that are not.

    The first rounds go from V toward a frame W that has a large <W, T> for its unit rows. After FEW_ROUNDS rows have scales, and
    the rounds go on to where <W, T> is stationary (see `settling`). The others leave only what is not tight to be removed. They
    work on the smaller of two sides: columns V, or orthonormal columns E that complete them (and 1, for centered
    frames) to a basis of all of R^C. Rows of V have equal norms exactly when rows of E have, and
    the share of the defect that a round leaves is about the number of columns over C: at most a half on the smaller side, where it
    would be near to 1 for num_classes little above feature_dim. E itself is not needed, see `shrunk_rows`.

    Args:
        columns: V, (num_classes, feature_dim), orthonormal columns, centered; num_classes > feature_dim + 1.
        target: T, (num_classes, feature_dim), of any scale but 0.
        fallback: (num_classes, feature_dim), rows for those of V that are zero.
        rounds: how many with the pull; twice as many without follow.
        solver: how polar factors are found.

    Returns:
        W, (num_classes, feature_dim). The last operation is the division of each row by its norm.
    """
    num_classes, feature_dim = columns.shape
    centered = can_be_centered(num_classes, feature_dim)
    scaled_target = target * (math.sqrt(num_classes) / torch.linalg.vector_norm(target))
    few = min(rounds, FEW_ROUNDS)
    if solver == "factors":
        alternating, settling, polar = alternate, settle, polar_columns
    else:
        alternating, settling, polar = _alternate_by_products, _settle_by_products, polar_columns_by_products
    columns = alternating(columns, scaled_target, fallback, pulls=few * [PULL], centered=centered)
    columns = settling(columns, scaled_target, rounds=rounds - few, centered=centered)
    if evens_by_spare_rows(num_classes, feature_dim):
        for _ in range(2 * rounds):
            columns = polar(shrunk_rows(columns, centered=centered))
    else:
        columns = alternating(columns, scaled_target, fallback, pulls=2 * rounds * [0.0], centered=centered)
    return _unit(columns)


def shrunk_rows(columns: Tensor, *, centered: bool) -> Tensor:
    """A matrix with the columns' span after a round on the other side: rows of E are divided by their norms.

    Let D have the norms of the rows of E, D^2 = 1 - |v|^2 (less 1/C if V is centered). What is orthogonal to D^-1 E is the span of
    D V; and to D^-1 E with its mean taken away, that part of the span of D V and D 1 which sums to zero.
    """
    scales = spare_norms(columns, centered=centered)
    rows = scales * columns
    return rows - scales * (rows.sum(dim=0) / scales.sum()) if centered else rows


def spare_norms(columns: Tensor, *, centered: bool, num_classes: int | None = None) -> Tensor:
    """The norms of the rows of E, not too far below the usual one: (num_rows, 1).

    Args:
        columns: V or some rows of it, (num_rows, feature_dim).
        centered: whether V is centered.
        num_classes: C, if these are not all rows.
    """
    num_classes = num_classes or len(columns)
    least = LEAST_SPARE_SHARE * num_spare_columns(num_classes, columns.shape[1]) / num_classes
    whole = 1 - centered / num_classes
    return (whole - columns.square().sum(dim=1, keepdim=True)).clamp(min=least).sqrt()


def _alternate_by_products(columns: Tensor, target: Tensor, fallback: Tensor, *, pulls: Sequence[float], centered: bool) -> Tensor:
    """`alternate` by products alone, with autograd's own gradient."""
    for index, pull in enumerate(pulls):
        if index == 0:
            norms = torch.linalg.vector_norm(columns.detach(), dim=1)
            zero = is_zero_row(norms, num_classes=len(columns), num_columns=columns.shape[1])
            columns = torch.where(zero[:, None], fallback, columns)
        rows = _unit(columns) + pull * target
        columns = polar_columns_by_products(center_classes(rows) if centered else rows)
    return columns


def _settle_by_products(columns: Tensor, target: Tensor, *, rounds: int, centered: bool) -> Tensor:
    """`settle` by products alone, with autograd's own gradient."""
    scales = columns.new_ones(len(columns))
    for _ in range(rounds):
        norms = torch.linalg.vector_norm(columns, dim=1)
        scales = next_scales(scales, norms, num_columns=columns.shape[1])
        rows = (scales / norms)[:, None] * columns + SETTLING_PULL * target
        columns = polar_columns_by_products(center_classes(rows) if centered else rows)
    return columns


def _unit(columns: Tensor) -> Tensor:
    return functional.normalize(columns, dim=1, eps=torch.finfo(columns.dtype).tiny)
