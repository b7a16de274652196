"""How far the features of a class still scatter, against the distances between the classes: NC1 and its relatives."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.formulas.products import blocks_of_rows
from guided_collapse.metrics.formulas.statistics import ClassStatistics

EPSILON = torch.finfo(torch.float64).eps
DISTANCE_FLOOR = 1e-6
EIGENVALUE_FLOOR = 1e-6
CLOSE_PAIRS_AT_ONCE = 4096


class BetweenClasses(NamedTuple):
    """The directions in which the class means differ: S_B = (1/C) V diag(values)^2 V'."""

    directions: Tensor
    """V, (feature_dim, rank), orthonormal columns."""
    values: Tensor
    """The positive singular values of the centered class means, (rank,), largest first."""
    spread: Tensor
    """V diag(values), (feature_dim, rank), where each dimension has as many correct digits as it has in the class means."""


def between_classes(centered_class_means: Tensor, magnitude: Tensor) -> BetweenClasses:
    """The singular directions of the centered class means, cut at rank C-1.

    Centering takes one dimension away, so S_B has rank C-1 at most, and what is left of the last singular value is rounding error
    that an inverse would turn into the largest term of all. Means that coincide take away more: values below rounding level of the
    means, as they were before centering, are dropped too.

    Args:
        centered_class_means: mu_c - mu_G, (num_classes, feature_dim), float64.
        magnitude: the largest norm of a class mean before centering, a scalar.
    """
    num_classes, feature_dim = centered_class_means.shape
    most = min(num_classes - 1, feature_dim)
    floor = 4 * math.sqrt(num_classes) * EPSILON * magnitude
    # The Gram matrix is several times quicker than an SVD, and as good while no eigenvalue is small against the largest.
    few_rows = num_classes <= feature_dim + 1
    gram = centered_class_means @ centered_class_means.T if few_rows else centered_class_means.T @ centered_class_means
    squares, vectors = torch.linalg.eigh(gram)
    squares, vectors = squares.flip(0)[:most], vectors.flip(1)[:, :most]
    if bool(squares[-1] > EIGENVALUE_FLOOR * squares[0]) and bool(squares[-1].clamp(min=0).sqrt() > floor):
        values = squares.sqrt()
        spread = centered_class_means.T @ vectors if few_rows else gram @ vectors / values
        return BetweenClasses(spread / values, values, spread)
    vectors, values, directions = torch.linalg.svd(centered_class_means, full_matrices=False)
    rank = int((values[:most] > floor).sum())
    return BetweenClasses(directions[:rank].T, values[:rank], centered_class_means.T @ vectors[:, :rank])


def variability_collapse(statistics: ClassStatistics, between: BetweenClasses) -> float:
    """NC1 = tr(S_W pinv(S_B)) / C, never negative; NaN if all class means coincide, where S_B has no inverse of any use.

    With the directions v_i and singular values s_i of the centered means it is sum_i v_i' S_W v_i / s_i^2: no pseudo-inverse of
    feature_dim x feature_dim is formed.
    """
    if len(between.values) == 0:
        return math.nan
    within = (between.directions * (statistics.scatter @ between.directions)).sum(dim=0).clamp(min=0)
    return float((within / between.values.square()).sum()) / statistics.num_samples


def variability_collapse_index(statistics: ClassStatistics, between: BetweenClasses) -> float:
    """VCI = 1 - tr(pinv(S_T) S_B) / min(d, C-1) with S_T = S_W + S_B, between 0 (collapsed) and 1.

    Written as the small quantity it is near collapse, with no inverse that is infinite where a direction has no scatter: let G be
    the scatter in the span of the class means that scatter outside of it does not explain, the Schur complement of S_W, and
    M the part of S_B there, which is all of it. Then rank - tr(pinv(S_T) S_B) = tr(G (G + M)^-1). NaN if S_W is not positive
    semidefinite.
    """
    num_classes, feature_dim = statistics.class_means.shape
    most, rank = min(feature_dim, num_classes - 1), len(between.values)
    within = statistics.scatter / statistics.num_samples
    if rank == 0 or not bool(within.any()):
        return (most - rank) / most
    spread = between.spread / math.sqrt(num_classes)
    # The units of a dimension do not change the index. With those that make S_T 1, small dimensions do not drown in large ones;
    # one that is constant but for rounding errors is none.
    varies = spread.any(dim=1) | (within.diagonal().abs() > statistics.rounding.square())
    units = torch.where(varies, (within.diagonal() + spread.square().sum(dim=1)).abs().rsqrt(), 0)
    spread *= units[:, None]
    within *= units * units[:, None]
    reflectors, lengths = torch.geqrf(spread)
    rotated = torch.ormqr(reflectors, lengths, within, left=True, transpose=True)
    # The span of the means comes last: a Cholesky factor has the factor of the Schur complement of the rest there.
    rotated = torch.ormqr(reflectors, lengths, rotated, left=False).flip(0, 1)
    # A direction without scatter has rounding errors in place of zeros, which must not explain anything.
    rotated.diagonal().add_(8 * EPSILON * rotated.diagonal().sum())
    factor, failed = torch.linalg.cholesky_ex(rotated)
    if bool(failed):
        return math.nan
    unexplained = factor[-rank:, -rank:].T
    means = reflectors[:rank].triu().flip(0).T
    both = torch.linalg.qr(torch.cat([unexplained, means]), mode="r").R
    shares = torch.linalg.solve_triangular(both, unexplained, upper=True, left=False)
    return (most - rank + float(shares.square().sum())) / most


def trace_ratio(statistics: ClassStatistics, centered_class_means: Tensor) -> float:
    """tr S_W / tr S_B; NaN or infinite if all class means coincide."""
    within = statistics.class_scatter.sum() / statistics.num_samples
    return float(within / centered_class_means.square().sum(dim=1).mean())


def class_distance_normalized_variance(statistics: ClassStatistics, centered_class_means: Tensor) -> float:
    """CDNV: the mean over pairs of classes of (Var_c + Var_k) / (2 |mu_c - mu_k|^2), with Var_c the mean of |h - mu_c|^2.

    Infinite or NaN if two class means coincide.

    Args:
        statistics: of the classes.
        centered_class_means: relative to any common point, (num_present, feature_dim), float64.
    """
    variances = statistics.class_scatter / statistics.counts[statistics.present]
    number = len(variances)
    sums = []
    for block in blocks_of_rows(number, number):
        # Each pair once: with the rows of the block come those after it.
        later = slice(block.start, None)
        distances = _squared_distances(statistics.class_means[later], centered_class_means[later], len(variances[block]))
        sums.append(((variances[block][:, None] + variances[later]) / (2 * distances)).triu_(1).sum())
    return float(torch.stack(sums).sum()) / (number * (number - 1) / 2)


def _squared_distances(rows: Tensor, centered_rows: Tensor, num_first: int) -> Tensor:
    """|r_i - r_j|^2 of the first rows and all later ones, (num_first, num_rows), above the diagonal.

    They are from inner products, and directly for pairs so close that these would cancel.
    """
    squares = centered_rows.square().sum(dim=1)
    sizes = squares[:num_first, None] + squares
    distances = sizes - 2 * (centered_rows[:num_first] @ centered_rows.T)
    close_pairs = (distances <= DISTANCE_FLOOR * sizes).triu_(1).nonzero()
    for close in torch.split(close_pairs, CLOSE_PAIRS_AT_ONCE):
        first, second = close.T
        distances[first, second] = (rows[first] - rows[second]).square().sum(dim=1)
    return distances
