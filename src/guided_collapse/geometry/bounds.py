"""Bounds for any number of classes: how far apart the rows of a frame can be, and how low its cross-entropy can get."""

import math

from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes


def welch_bound(feature_dim: int, num_classes: int) -> float:
    """Returns the Welch bound: the largest |cosine| among C unit vectors in d dimensions is at least sqrt((C-d) / (d (C-1))).

    For C <= d the bound is 0, attained by orthonormal vectors. For C > d only equiangular tight frames attain the bound; such
    frames exist for few sizes, and never for C > d (d + 1) / 2.
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    return math.sqrt(max(0, num_classes - feature_dim) / (feature_dim * (num_classes - 1)))


def largest_cosine_bound(feature_dim: int, num_classes: int) -> float:
    """Returns a lower bound on the largest (signed) cosine among C unit vectors in d dimensions.

    | sizes | bound | attained |
    |---|---|---|
    | C <= d + 1 | -1/(C-1) | by the simplex ETF |
    | d = 1, C > 2 | 1 | always: there are only two unit vectors |
    | d = 2 | cos(2 pi / C) | by the regular polygon |
    | d + 1 < C <= 2d | 0 (Rankin) | by vectors of the orthoplex, e_k and -e_k |
    | 2d < C <= d (d+3) / 2 | s with C = d (1-s) (2 + (d+1) s) / (1 - d s^2) (Levenshtein) | for few sizes |
    | larger C | the bound for d (d+3) / 2 vectors | never |
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if num_classes <= feature_dim + 1:
        return -1 / (num_classes - 1)
    if feature_dim == 1:
        return 1.0
    if feature_dim == 2:
        return math.cos(2 * math.pi / num_classes)
    if num_classes <= 2 * feature_dim:
        return 0.0
    # C (1 - d s^2) = d (1 - s) (2 + (d+1) s) is quadratic in s; the root taken is 0 at C = 2d.
    num_vectors = min(num_classes, feature_dim * (feature_dim + 3) // 2)
    square, linear = feature_dim * (feature_dim + 1 - num_vectors), feature_dim * (feature_dim - 1)
    constant = num_vectors - 2 * feature_dim
    return 2 * constant / (linear + math.sqrt(linear**2 - 4 * square * constant))


def tight_frame_cross_entropy_bound(feature_dim: int, num_classes: int, scale: float) -> float:
    """Returns a lower bound on the mean cross-entropy of a tight, centered weight with unit rows and features of norm tau.

    For C <= d + 1, the bound is log(1 + (C-1) exp(-tau C/(C-1))), which holds for any unit rows. For C > d + 1, it is

        log(1 + exp(-tau) (p exp(-tau) + q exp(tau s))),   s = (C/d - 2)/(C - 2),   q = (C - 2)/(1 + s),   p = C - 1 - q.

    Proof: in a tight, centered frame the cosines t of a row with the others satisfy sum t = -1 and sum t^2 = C/d - 1. The parabola
    in t that is tangent to exp(tau t) at s and meets it at -1 lies below exp(tau t) on [-1, 1]. Its sum over the cosines depends
    only on these two moments, so the sum is as large as if p cosines were -1 and q were s, which gives the bound. The bound is
    attained for C = d + 1 and, by the orthoplex, for C = 2d; for other sizes it need not be attained.

    Args:
        feature_dim: d, at least 2 for more than two classes.
        num_classes: C, at least 2.
        scale: tau, positive and finite.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale must be a positive, finite number; got {scale}.")
    if num_classes <= feature_dim + 1:
        return math.log1p((num_classes - 1) * math.exp(-scale * num_classes / (num_classes - 1)))
    if feature_dim == 1:
        raise ValueError(
            "feature_dim must be at least 2 for more than two classes, because one dimension has only two unit vectors; "
            f"got feature_dim=1, num_classes={num_classes}. Widen the last layer or add a projection."
        )
    cosine = (num_classes / feature_dim - 2) / (num_classes - 2)
    num_near = (num_classes - 2) / (1 + cosine)
    num_opposite = num_classes - 1 - num_near
    return math.log1p(num_opposite * math.exp(-2 * scale) + num_near * math.exp(scale * (cosine - 1)))
