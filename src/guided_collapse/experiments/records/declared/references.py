"""What theory gives for the quantities that are shown, where it depends on the sizes alone."""

import math


def best_margin(num_classes: int, feature_dim: int) -> float | None:
    """The largest value that the least cosine margin of C classes in d dimensions can have; None where it is not known.

    It is that of C unit rows whose least distance from the convex hull of all others is as large as can be: C/(C-1) for
    C <= d + 1 (simplex ETF), 1 - cos(2 pi / C) for d = 2 (regular polygon), 0 for d = 1 and C > 2, and 1 for d + 1 < C <= 2d
    (vectors of the orthoplex, e_k and -e_k). For C > d + 1 it is at most 1: zero, or the point of the hull that is nearest to it,
    is in the hull of d + 1 rows at most, and any other row is no further than 1 from it.
    """
    if num_classes <= feature_dim + 1:
        return num_classes / (num_classes - 1)
    if feature_dim == 1:
        return 0.0
    if feature_dim == 2:
        return 1 - math.cos(2 * math.pi / num_classes)
    return 1.0 if num_classes <= 2 * feature_dim else None
