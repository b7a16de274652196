"""The metrics as functions of class statistics, class means and weights.

For C <= d + 1 classes in d dimensions, frames are compared with a simplex ETF, whose Gram matrix is proportional to the projector
P = I - 11'/C. For more classes, no simplex ETF exists, and frames are compared with a tight frame, whose Gram matrix is
proportional to one of many projectors of rank d onto vectors whose entries sum to zero.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from guided_collapse.geometry.bounds import tight_frame_cross_entropy_bound
from guided_collapse.geometry.simplex import center_classes, simplex_etf
from guided_collapse.metrics.statistics import ClassStatistics

EPSILON = torch.finfo(torch.float64).eps
CLOSE_PAIR = 1e-6
SMALL_EIGENVALUE = 1e-6
NUMBERS_AT_ONCE = 2**24
"""Maximum number of entries of a matrix product in memory, enough for all pairs of 4096 classes."""


def frame_deviation(left: Tensor, right: Tensor | None = None) -> float:
    """Returns | G/|G|_F - Pi/sqrt(m) |_F with G = L R' and m = min(d, C-1); NaN if G is zero.

    This is NC2 for L = R, and NC3 if L holds the weights and R the class means.

    Pi is the nearest projector of rank m onto vectors whose entries sum to zero; for C <= d + 1, this is P = I - 11'/C. L and R are
    (num_classes, feature_dim), float64; if R is None, R = L.
    """
    num_classes, feature_dim = left.shape
    other = left if right is None else right
    if num_classes <= feature_dim + 1:
        gram = left @ other.T
        target = simplex_etf(num_classes, dtype=gram.dtype, device=gram.device) / math.sqrt(num_classes)
    else:
        # Computed in an orthonormal basis of the span of 1 and the columns of L and R, outside of which G and Pi are zero. The
        # first basis vector is parallel to 1, so the others are orthogonal to 1 even if L and R are rank-deficient. Pi projects on
        # the eigenvectors of the d largest eigenvalues of P (G + G') P.
        basis = torch.linalg.qr(torch.cat([left.new_ones(num_classes, 1), left, *(() if right is None else (right,))], dim=1)).Q
        gram = (basis.T @ left) @ (other.T @ basis)
        vectors = torch.linalg.eigh(gram[1:, 1:] + gram[1:, 1:].T).eigenvectors[:, -feature_dim:]
        target = torch.zeros_like(gram)
        target[1:, 1:] = vectors @ vectors.T / math.sqrt(feature_dim)
    return float(torch.linalg.vector_norm(gram / norm_of_any_size(gram) - target))


def norm_variation(rows: Tensor) -> float:
    """Returns std_c |r_c| / avg_c |r_c|, with the sample standard deviation (ddof = 1); NaN if all rows are zero."""
    norms = torch.linalg.vector_norm(rows, dim=1)
    return float(norms.std() / norms.mean())


def angle_deviation(rows: Tensor) -> float:
    """Returns the mean over pairs of rows of |cos + 1/(C-1)|: 0 for rows with the angles of a simplex ETF; NaN if a row is zero."""
    gram = rows @ rows.T
    norms = gram.diagonal().sqrt()
    first, second = torch.triu_indices(len(gram), len(gram), offset=1, device=gram.device)
    cosines = (gram / norms / norms[:, None])[first, second]
    return float((cosines + 1 / (len(gram) - 1)).abs().mean())


def smallest_angle(rows: Tensor) -> float:
    """Returns the smallest angle between two rows, in degrees; NaN if a row is zero."""
    unit = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    cosines, pairs = [], []
    for block in _blocks_of_rows(len(unit), len(unit)):
        # Each pair once: rows of the block with one another and with later rows.
        later = unit[block.start :]
        largest, place = (unit[block] @ later.T).fill_diagonal_(-torch.inf).flatten().max(dim=0)
        cosines.append(largest)
        pairs.append((later[place // len(later)], later[place % len(later)]))
    first, second = pairs[int(torch.stack(cosines).argmax())]
    # Unlike acos, accurate for small and large angles.
    half = torch.atan2(torch.linalg.vector_norm(first - second), torch.linalg.vector_norm(first + second))
    return math.degrees(2 * float(half))


def least_margin(means: Tensor, weight: Tensor, classes: Tensor) -> float:
    """Returns the smallest cosine margin of a class mean, min_c (cos(mu_c, w_c) - max_{j != c} cos(mu_c, w_j)).

    The means, (num_present, feature_dim), are those of `classes`, (num_present,); the weight is (num_classes, feature_dim). Both
    are centered, in float64. The result is NaN if a row is zero.
    """
    unit_means, unit_weight = (normalize(rows, dim=1, eps=0) for rows in (means, weight))
    margins = []
    for block in _blocks_of_rows(len(means), len(weight)):
        cosines, own_class = unit_means[block] @ unit_weight.T, classes[block][:, None]
        own = cosines.gather(1, own_class)
        margins.append((own - cosines.scatter(1, own_class, -torch.inf)).min())
    return float(torch.stack(margins).min())


def nearest_frame_distance(means: Tensor) -> float:
    """Returns the squared distance from class means H~, at unit Frobenius norm, to the nearest frame: 2 - 2 |H~ P|_* / sqrt(m).

    |.|_* is the nuclear norm. H~ P has at most rank m = min(d, C-1); further singular values are rounding errors and are left out.
    The result is NaN if all means are zero. For C > d + 1, the nearest frame is a tight frame whose squared row norms average 1.
    """
    num_classes, feature_dim = means.shape
    if num_classes <= feature_dim + 1:
        gram = means @ means.T
        square = gram.diagonal().sum()
        products = center_classes(center_classes(gram / square).T)
    else:
        square, centered = means.square().sum(), center_classes(means)
        products = centered.T @ centered / square
    if not bool(square > 0):
        return math.nan
    rank = min(feature_dim, num_classes - 1)
    values = torch.linalg.eigvalsh(products)[-rank:].clamp(min=0).sqrt()
    return max(0.0, float(2 - 2 * values.sum() / math.sqrt(rank)))


def cross_entropy_lower_bound(num_classes: int, scale: float) -> float:
    r"""Returns the smallest possible mean cross-entropy of weights with unit rows and features of norm tau.

    $$
    \log \left( 1 + (C-1) \, e^{-\tau C / (C-1)} \right)
    $$

    It is attained exactly at neural collapse, where every feature is tau times the row of its class in a simplex ETF.

    Args:
        num_classes: C, at least 2.
        scale: tau, the norm of the features, positive and finite.

    Example:
        >>> from guided_collapse import cross_entropy_lower_bound
        >>> round(cross_entropy_lower_bound(10, scale=5.0), 4)
        0.0342
    """
    return tight_frame_cross_entropy_bound(num_classes - 1, num_classes, scale)


class BetweenClasses(NamedTuple):
    """The directions in which class means differ: S_B = (1/C) V diag(values)^2 V'."""

    directions: Tensor  # V, (feature_dim, rank), orthonormal columns
    values: Tensor  # positive singular values of the centered class means, (rank,), in descending order
    spread: Tensor  # V diag(values), (feature_dim, rank), as accurate in each dimension as the class means


def between_classes(centered_class_means: Tensor, magnitude: Tensor) -> BetweenClasses:
    """Returns the singular directions and values of the centered class means, without directions that are only rounding errors.

    Centered means have rank at most C-1. Any further singular values are rounding errors, whose inverses would dominate
    pinv(S_B). Singular values below the rounding errors of the means before centering are left out, too; `magnitude` is the largest
    norm of these means.
    """
    num_classes, feature_dim = centered_class_means.shape
    most = min(num_classes - 1, feature_dim)
    floor = 4 * math.sqrt(num_classes) * EPSILON * magnitude
    # An eigendecomposition is several times faster than an SVD, and as accurate if no eigenvalue is small relative to the largest.
    few_rows = num_classes <= feature_dim + 1
    gram = centered_class_means @ centered_class_means.T if few_rows else centered_class_means.T @ centered_class_means
    squares, vectors = torch.linalg.eigh(gram)
    squares, vectors = squares.flip(0)[:most], vectors.flip(1)[:, :most]
    if bool(squares[-1] > SMALL_EIGENVALUE * squares[0]) and bool(squares[-1].clamp(min=0).sqrt() > floor):
        values = squares.sqrt()
        spread = centered_class_means.T @ vectors if few_rows else gram @ vectors / values
        return BetweenClasses(spread / values, values, spread)
    vectors, values, directions = torch.linalg.svd(centered_class_means, full_matrices=False)
    rank = int((values[:most] > floor).sum())
    return BetweenClasses(directions[:rank].T, values[:rank], centered_class_means.T @ vectors[:, :rank])


def variability_collapse(statistics: ClassStatistics, between: BetweenClasses) -> float:
    """Returns NC1 = tr(S_W pinv(S_B)) / C, never negative; NaN if all class means coincide.

    It is computed as sum_i v_i' S_W v_i / s_i^2 over the singular directions v_i and singular values s_i of the centered means,
    without a pseudoinverse of size feature_dim x feature_dim.
    """
    if len(between.values) == 0:
        return math.nan
    within = (between.directions * (statistics.scatter @ between.directions)).sum(dim=0).clamp(min=0)
    return float((within / between.values.square()).sum()) / statistics.num_samples


def variability_collapse_index(statistics: ClassStatistics, between: BetweenClasses) -> float:
    """Returns VCI = 1 - tr(pinv(S_T) S_B) / min(d, C-1) with S_T = S_W + S_B, between 0 (collapsed) and 1.

    Let G be the Schur complement of S_W in the span of the centered class means: the within-class scatter in the span that remains
    after regression on the directions orthogonal to the span. Let M be the matrix of S_B in the span. Then
    rank - tr(pinv(S_T) S_B) = tr(G (G + M)^-1). This form is accurate near collapse, where the index is small, because nothing
    cancels and no direction without scatter is inverted. The result is NaN if S_W is not positive semidefinite.
    """
    num_classes, feature_dim = statistics.class_means.shape
    most, rank = min(feature_dim, num_classes - 1), len(between.values)
    within = statistics.scatter / statistics.num_samples
    if rank == 0 or not bool(within.any()):
        return (most - rank) / most
    spread = between.spread / math.sqrt(num_classes)
    # The index does not depend on the scale of a dimension. Scaling the diagonal of S_T to 1 preserves the digits of small
    # dimensions. Dimensions that are constant up to rounding errors do not count.
    varies = spread.any(dim=1) | (within.diagonal().abs() > statistics.rounding.square())
    units = torch.where(varies, (within.diagonal() + spread.square().sum(dim=1)).abs().rsqrt(), 0)
    spread *= units[:, None]
    within *= units * units[:, None]
    reflectors, lengths = torch.geqrf(spread)
    rotated = torch.ormqr(reflectors, lengths, within, left=True, transpose=True)
    # The span of the means comes last, because the last block of the Cholesky factor is the factor of the Schur complement.
    rotated = torch.ormqr(reflectors, lengths, rotated, left=False).flip(0, 1)
    # Directions without scatter contain rounding errors instead of zeros. These errors must not explain any scatter.
    rotated.diagonal().add_(8 * EPSILON * rotated.diagonal().sum())
    factor, failed = torch.linalg.cholesky_ex(rotated)
    if bool(failed):
        return math.nan
    unexplained = factor[-rank:, -rank:].T
    means = reflectors[:rank].triu().flip(0).T
    both = torch.linalg.qr(torch.cat([unexplained, means]), mode="r").R
    shares = torch.linalg.solve_triangular(both, unexplained, upper=True, left=False)
    return (most - rank + float(shares.square().sum())) / most


def class_distance_normalized_variance(statistics: ClassStatistics, centered_class_means: Tensor) -> float:
    """Returns CDNV: the mean over pairs of classes of (Var_c + Var_k) / (2 |mu_c - mu_k|^2), with Var_c the mean of |h - mu_c|^2.

    The result is infinite or NaN if two class means coincide. `centered_class_means`, (num_present, feature_dim), float64, may be
    centered by any vector.
    """
    variances = statistics.class_scatter / statistics.counts[statistics.present]
    number, sums = len(variances), []
    for block in _blocks_of_rows(number, number):
        # Each pair once: rows of the block with one another and with later rows.
        means, centered, later = (rows[block.start :] for rows in (statistics.class_means, centered_class_means, variances))
        own, squares = variances[block], centered.square().sum(dim=1)
        sizes = squares[: len(own), None] + squares
        distances = sizes - 2 * (centered[: len(own)] @ centered.T)
        # For close pairs, inner products would cancel, so distances are computed from differences.
        for close in torch.split((distances <= CLOSE_PAIR * sizes).triu_(1).nonzero(), 4096):
            first, second = close.T
            distances[first, second] = (means[first] - means[second]).square().sum(dim=1)
        sums.append(((own[:, None] + later) / (2 * distances)).triu_(1).sum())
    return float(torch.stack(sums).sum()) / (number * (number - 1) / 2)


def norm_of_any_size(values: Tensor) -> Tensor:
    """Returns the Euclidean norm, a scalar, without overflow or underflow of squares."""
    largest = values.abs().amax()
    return torch.where(largest > 0, largest * torch.linalg.vector_norm(values / largest), largest)


def _blocks_of_rows(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Returns an iterator over slices that split the rows of a (num_rows, num_columns) product, to limit its memory."""
    length = max(1, NUMBERS_AT_ONCE // num_columns)
    return (slice(start, start + length) for start in range(0, num_rows, length))
