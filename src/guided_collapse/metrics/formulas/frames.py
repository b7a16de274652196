"""How near weights and class means are to a frame: NC2, NC3, equal norms, angles, and the nearest frame.

For C <= d + 1 classes in d dimensions the frame is a simplex ETF. For more there is none, and the place of P = I - 11'/C, its Gram
matrix up to scale, is taken by that of a tight frame: a projector of rank d on the complement of 1, of which there are many.
"""

import math

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import center_classes, check_num_classes, simplex_etf
from guided_collapse.metrics.formulas.products import blocks_of_rows, norm_of_any_size


def frame_deviation(left: Tensor, right: Tensor | None = None) -> float:
    """| G/|G|_F - Pi/sqrt(m) |_F with G = L R' and m = min(d, C-1): NC2 for L = R, NC3 for weights and means; NaN if G is zero.

    Pi is the projector nearest to G, of rank m on the complement of 1. For C <= d + 1 there is one only, P = I - 11'/C.

    Args:
        left: L, (num_classes, feature_dim), float64.
        right: R, of the same shape; None takes L.
    """
    num_classes, feature_dim = left.shape
    if num_classes <= feature_dim + 1:
        gram = left @ (left if right is None else right).T
        target = simplex_etf(num_classes, dtype=gram.dtype, device=gram.device) / math.sqrt(num_classes)
    else:
        gram, projector = _with_nearest_projector(left, right)
        target = projector / math.sqrt(feature_dim)
    return float(torch.linalg.vector_norm(gram / norm_of_any_size(gram) - target))


def _with_nearest_projector(left: Tensor, right: Tensor | None) -> tuple[Tensor, Tensor]:
    """G = LR' and the projector of rank d on the complement of 1 that is nearest to it, for more than d + 1 rows.

    Both are given in an orthonormal basis of the span of 1 and the columns of L and R, outside of which they are zero. The
    projector is that on the eigenvectors of the d largest eigenvalues of P (LR' + RL') P.
    """
    num_classes, feature_dim = left.shape
    columns = [left.new_ones(num_classes, 1), left] + ([] if right is None else [right])
    # The first vector of the basis is 1, so that the others are orthogonal to it, even where L and R lack rank.
    basis = torch.linalg.qr(torch.cat(columns, dim=1)).Q
    gram = (basis.T @ left) @ ((left if right is None else right).T @ basis)
    centered = gram[1:, 1:]
    vectors = torch.linalg.eigh(centered + centered.T).eigenvectors[:, -feature_dim:]
    projector = torch.zeros_like(gram)
    projector[1:, 1:] = vectors @ vectors.T
    return gram, projector


def norm_variation(rows: Tensor) -> float:
    """std_c |r_c| / avg_c |r_c|, with the sample standard deviation (ddof = 1): 0 for rows of equal norm, NaN if all are zero."""
    norms = torch.linalg.vector_norm(rows, dim=1)
    return float(norms.std() / norms.mean())


def angle_deviation(gram: Tensor) -> float:
    """The mean over pairs of rows of |cos + 1/(C-1)|: 0 for rows with the angles of a simplex ETF; NaN if a row is zero.

    Args:
        gram: the inner products of the rows, (num_classes, num_classes), float64.
    """
    norms = gram.diagonal().sqrt()
    first, second = torch.triu_indices(len(gram), len(gram), offset=1, device=gram.device)
    cosines = (gram / norms / norms[:, None])[first, second]
    return float((cosines + 1 / (len(gram) - 1)).abs().mean())


def smallest_angle(rows: Tensor) -> float:
    """The smallest angle between two rows, in degrees; NaN if a row is zero.

    Args:
        rows: (num_rows, feature_dim), float64.
    """
    unit = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    cosines, pairs = [], []
    for block in blocks_of_rows(len(unit), len(unit)):
        # Each pair once: with the rows of the block come those after it.
        later = unit[block.start :]
        largest, place = (unit[block] @ later.T).fill_diagonal_(-torch.inf).flatten().max(dim=0)
        cosines.append(largest)
        pairs.append((later[place // len(later)], later[place % len(later)]))
    first, second = pairs[int(torch.stack(cosines).argmax())]
    # Other than the inverse cosine, exact for small and for large angles.
    half = torch.atan2(torch.linalg.vector_norm(first - second), torch.linalg.vector_norm(first + second))
    return math.degrees(2 * float(half))


def least_margin(means: Tensor, weight: Tensor, classes: Tensor) -> float:
    """min_c cos(mu_c, w_c) - max_{j != c} cos(mu_c, w_j): the least cosine margin of a class mean; NaN if a row is zero.

    For given weights of norm 1 it is largest where each mean points from the convex hull of all other rows to its own row, and is
    then their one-against-rest margin, the least distance of a row from that hull.

    Args:
        means: centered, (num_present, feature_dim), float64.
        weight: centered, (num_classes, feature_dim), float64.
        classes: (num_present,), the class of each mean.
    """
    unit_means, unit_weight = (torch.nn.functional.normalize(rows, dim=1, eps=0) for rows in (means, weight))
    margins = []
    for block in blocks_of_rows(len(means), len(weight)):
        cosines, own_class = unit_means[block] @ unit_weight.T, classes[block][:, None]
        own = cosines.gather(1, own_class)
        margins.append((own - cosines.scatter(1, own_class, -torch.inf)).min())
    return float(torch.stack(margins).min())


def nearest_frame_distance(means: Tensor) -> float:
    """The squared distance of class means, centered and at unit norm, to the nearest frame: 2 - 2 |H~ P|_* / sqrt(m).

    |.|_* is the nuclear norm; H~ P has rank m = min(d, C-1) at most, so other singular values are rounding errors and left out. NaN
    if the means are all zero. For C > d + 1 the frame is tight, with rows of norm 1 in the mean only.

    Args:
        means: of any scale, (num_classes, feature_dim), float64.
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
    """The lowest mean cross-entropy of unit weights and features of norm tau: log(1 + (C-1) exp(-tau C/(C-1))).

    It is reached exactly at neural collapse, where every feature is tau times its class's row of a simplex ETF.

    Args:
        num_classes: C, at least 2.
        scale: tau, the norm of the features.

    Raises:
        ValueError: for fewer than two classes, or a scale that is not a positive, finite number.

    Example:
        >>> from guided_collapse import cross_entropy_lower_bound
        >>> round(cross_entropy_lower_bound(10, scale=5.0), 4)
        0.0342
    """
    check_num_classes(num_classes)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale must be a positive, finite number; got {scale}.")
    return math.log1p((num_classes - 1) * math.exp(-scale * num_classes / (num_classes - 1)))
