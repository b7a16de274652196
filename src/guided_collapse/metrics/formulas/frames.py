"""How near weights and class means are to a simplex ETF: NC2, NC3, equal norms, equal angles, and the nearest frame."""

import math

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import centre_classes, check_num_classes, simplex_etf
from guided_collapse.metrics.formulas.products import norm_of_any_size


def simplex_deviation(gram: Tensor) -> float:
    """| G/|G|_F - P/sqrt(C-1) |_F with P = I - 11'/C: NC2 for G = WW', NC3 for G = W Hbar; NaN if G is zero.

    Args:
        gram: G, (num_classes, num_classes), float64.
    """
    target = simplex_etf(len(gram), dtype=gram.dtype, device=gram.device) / math.sqrt(len(gram))
    return float(torch.linalg.vector_norm(gram / norm_of_any_size(gram) - target))


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


def nearest_frame_distance(gram: Tensor) -> float:
    """The squared distance of class means, centred and at unit norm, to the nearest simplex ETF: 2 - 2 |H~ P|_* / sqrt(C-1).

    |.|_* is the nuclear norm; P has a null direction, so the last singular value is rounding error and left out. NaN if the means
    are all zero. A simplex ETF exists only for feature_dim >= num_classes - 1.

    Args:
        gram: the inner products of the class means, of any scale, (num_classes, num_classes), float64.
    """
    num_classes, square = len(gram), gram.diagonal().sum()
    if not bool(square > 0):
        return math.nan
    values = torch.linalg.eigvalsh(centre_classes(centre_classes(gram / square).T))[1:].clamp(min=0).sqrt()
    return max(0.0, float(2 - 2 * values.sum() / math.sqrt(num_classes - 1)))


def cross_entropy_lower_bound(num_classes: int, temperature: float) -> float:
    """The lowest mean cross-entropy of unit weights and features of norm tau: log(1 + (C-1) exp(-tau C/(C-1))).

    It is reached exactly at neural collapse, where every feature is tau times its class's row of a simplex ETF.

    Args:
        num_classes: C, at least 2.
        temperature: tau, the norm of the features.

    Raises:
        ValueError: for fewer than two classes, or a temperature that is not a positive, finite number.

    Example:
        >>> from guided_collapse import cross_entropy_lower_bound
        >>> round(cross_entropy_lower_bound(10, temperature=5.0), 4)
        0.0342
    """
    check_num_classes(num_classes)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a positive, finite number; got {temperature}.")
    return math.log1p((num_classes - 1) * math.exp(-temperature * num_classes / (num_classes - 1)))
