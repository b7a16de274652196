"""How far the features of a class still scatter, against the distances between the classes: NC1 and its relatives."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.statistics import ClassStatistics

EPSILON = torch.finfo(torch.float64).eps
DISTANCE_FLOOR = 1e-6
EIGENVALUE_FLOOR = 1e-6
CLOSE_PAIRS_AT_ONCE = 4096


class BetweenClasses(NamedTuple):
    """The directions in which the class means differ: S_B = (1/C) V diag(values)^2 V'."""

    directions: Tensor
    """V, (feature_dim, rank), orthonormal columns."""
    values: Tensor
    """The positive singular values of the centred class means, (rank,), largest first."""


def between_classes(centred_class_means: Tensor, gram: Tensor, magnitude: Tensor) -> BetweenClasses:
    """The singular directions of the centred class means, cut at rank C-1.

    Centring takes one dimension away, so S_B has rank C-1 at most, and what is left of the last singular value is rounding error
    that an inverse would turn into the largest term of all. Means that coincide take away more: values below rounding level of the
    means, as they were before centring, are dropped too.

    Args:
        centred_class_means: mu_c - mu_G, (num_classes, feature_dim), float64.
        gram: their inner products, (num_classes, num_classes).
        magnitude: the largest norm of a class mean before centring, a scalar.
    """
    num_classes, feature_dim = centred_class_means.shape
    most = min(num_classes - 1, feature_dim)
    floor = 4 * math.sqrt(num_classes) * EPSILON * magnitude
    # The Gram matrix is several times quicker than an SVD, and as good while no eigenvalue is small against the largest.
    squares, vectors = torch.linalg.eigh(gram)
    squares, vectors = squares.flip(0)[:most], vectors.flip(1)[:, :most]
    if bool(squares[-1] > EIGENVALUE_FLOOR * squares[0]) and bool(squares[-1].clamp(min=0).sqrt() > floor):
        values = squares.sqrt()
        return BetweenClasses(centred_class_means.T @ (vectors / values), values)
    _, values, directions = torch.linalg.svd(centred_class_means, full_matrices=False)
    rank = int((values[:most] > floor).sum())
    return BetweenClasses(directions[:rank].T, values[:rank])


def variability_collapse(statistics: ClassStatistics, between: BetweenClasses) -> float:
    """NC1 = tr(S_W pinv(S_B)) / C, never negative; NaN if all class means coincide, where S_B has no inverse of any use.

    With the directions v_i and singular values s_i of the centred means it is sum_i v_i' S_W v_i / s_i^2: no pseudo-inverse of
    feature_dim x feature_dim is formed.
    """
    if len(between.values) == 0:
        return math.nan
    within = (between.directions * (statistics.scatter @ between.directions)).sum(dim=0).clamp(min=0)
    return float((within / between.values.square()).sum()) / statistics.num_samples


def variability_collapse_index(statistics: ClassStatistics, between: BetweenClasses) -> float:
    """VCI = 1 - tr(pinv(S_T) S_B) / min(d, C-1) with S_T = S_W + S_B, between 0 (collapsed) and 1.

    Written as the small quantity it is near collapse, by Woodbury's identity: with B = V diag(s)/sqrt(C), so that S_B = BB',
    rank - tr(pinv(S_T) S_B) = tr((I + B' S_W^-1 B)^-1). Directions without any within-class scatter would need an infinite
    inverse; a ridge at rounding level of tr S_W stands in for it. NaN if S_W is not positive semidefinite even so.
    """
    num_classes, feature_dim = statistics.class_means.shape
    most, rank = min(feature_dim, num_classes - 1), len(between.values)
    within = statistics.scatter / statistics.num_samples
    trace = within.diagonal().sum()
    if rank == 0 or bool(trace == 0):
        return (most - rank) / most
    # Products in float32 can leave a matrix without scatter in some direction indefinite at their own rounding level, no higher.
    for ridge in (8 * EPSILON, statistics.rounding, 8 * statistics.rounding):
        within.diagonal().add_(ridge * trace)
        factor, failed = torch.linalg.cholesky_ex(within)
        if not bool(failed):
            break
    else:
        return math.nan
    spread = between.directions * (between.values / math.sqrt(num_classes))
    whitened = torch.linalg.solve_triangular(factor, spread, upper=False)
    values = torch.linalg.eigvalsh(whitened.T @ whitened).clamp(min=0)
    return (most - rank + float((1 / (1 + values)).sum())) / most


def trace_ratio(statistics: ClassStatistics, centred_class_means: Tensor) -> float:
    """tr S_W / tr S_B; NaN or infinite if all class means coincide."""
    within = statistics.class_scatter.sum() / statistics.num_samples
    return float(within / centred_class_means.square().sum(dim=1).mean())


def class_distance_normalised_variance(statistics: ClassStatistics, gram: Tensor) -> float:
    """CDNV: the mean over pairs of classes of (Var_c + Var_k) / (2 |mu_c - mu_k|^2), with Var_c the mean of |h - mu_c|^2.

    Infinite or NaN if two class means coincide.

    Args:
        statistics: of the classes.
        gram: the inner products of the class means relative to any common point, (num_present, num_present), float64.
    """
    variances = statistics.class_scatter / statistics.counts[statistics.present]
    first, second = torch.triu_indices(len(variances), len(variances), offset=1, device=variances.device)
    distances = _squared_distances(statistics.class_means, gram)[first, second]
    return float(((variances[first] + variances[second]) / (2 * distances)).mean())


def _squared_distances(rows: Tensor, gram: Tensor) -> Tensor:
    """|r_i - r_j|^2 for all pairs of rows: from their inner products, and directly for pairs so close that these would cancel."""
    sizes = gram.diagonal()[:, None] + gram.diagonal()
    distances = sizes - 2 * gram
    close_pairs = (distances <= DISTANCE_FLOOR * sizes).triu(1).nonzero()
    for close in torch.split(close_pairs, CLOSE_PAIRS_AT_ONCE):
        first, second = close.T
        distances[first, second] = (rows[first] - rows[second]).square().sum(dim=1)
    return distances
