"""How far apart the rows of a frame can be, and how low its cross-entropy can get, for any number of classes."""

import math

from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes


def welch_bound(feature_dim: int, num_classes: int) -> float:
    """Returns a lower bound of the largest |cosine| of two of C unit vectors in d dimensions: sqrt((C - d) / (d (C - 1))), or 0.

    Only equiangular tight frames reach it, which exist for few C and d, and for none with C > d (d + 1) / 2.
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    return math.sqrt(max(0, num_classes - feature_dim) / (feature_dim * (num_classes - 1)))


def largest_cosine_bound(feature_dim: int, num_classes: int) -> float:
    """Returns a lower bound of the largest cosine, with its sign, of two of C unit vectors in d dimensions.

    | sizes | bound | |
    |---|---|---|
    | C <= d + 1 | -1/(C-1) | reached by the simplex ETF |
    | d = 1, C > 2 | 1 | reached: there are only two unit vectors |
    | d = 2 | cos(2 pi / C) | reached by the regular polygon |
    | d + 1 < C <= 2d | 0 (Rankin) | reached by vectors of the orthoplex, e_k and -e_k |
    | 2d < C <= d (d+3) / 2 | s with C = d (1-s) (2 + (d+1) s) / (1 - d s^2) (Levenshtein) | reached for few sizes |
    | more | that of d (d+3) / 2 vectors | not reached; the truth is higher |
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
    # C (1 - d s^2) = d (1 - s) (2 + (d+1) s) is a quadratic equation in s; the root is the one that is 0 at C = 2d.
    num_vectors = min(num_classes, feature_dim * (feature_dim + 3) // 2)
    square, linear = feature_dim * (feature_dim + 1 - num_vectors), feature_dim * (feature_dim - 1)
    constant = num_vectors - 2 * feature_dim
    return 2 * constant / (linear + math.sqrt(linear**2 - 4 * square * constant))


def tight_frame_cross_entropy_bound(feature_dim: int, num_classes: int, scale: float) -> float:
    """Returns a lower bound of the mean cross-entropy, for a tight, centered weight of unit rows and features of norm tau.

    For C <= d + 1 it is log(1 + (C-1) exp(-tau C/(C-1))), which holds for all unit rows. For C > d + 1

        log(1 + exp(-tau) (p exp(-tau) + q exp(tau s))),   s = (C/d - 2)/(C - 2),   q = (C - 2)/(1 + s),   p = C - 1 - q.

    A row would have it whose cosines with the others are -1 (p times) and s (q times): the two moments that a tight, centered frame
    fixes, sum t = -1 and sum t^2 = C/d - 1, allow no lower sum of exponentials. (The parabola that touches exp(tau t) at s and
    meets it at -1 stays below it on [-1, 1], and its sum over the cosines t depends on the moments only.) It is reached for
    C = d + 1 and by the orthoplex, C = 2d. For other sizes it is a bound that no frame need reach.

    With more than two classes feature_dim must be at least 2; scale is tau, positive and finite.
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"scale must be a positive, finite number; got {scale}.")
    if num_classes <= feature_dim + 1:
        return math.log1p((num_classes - 1) * math.exp(-scale * num_classes / (num_classes - 1)))
    if feature_dim == 1:
        raise ValueError(
            "feature_dim must be at least 2 for the bound with more than two classes: one dimension has only two unit vectors; "
            f"got feature_dim=1, num_classes={num_classes}. Widen the last layer or add a projection."
        )
    cosine = (num_classes / feature_dim - 2) / (num_classes - 2)
    num_near = (num_classes - 2) / (1 + cosine)
    num_opposite = num_classes - 1 - num_near
    return math.log1p(num_opposite * math.exp(-2 * scale) + num_near * math.exp(scale * (cosine - 1)))
