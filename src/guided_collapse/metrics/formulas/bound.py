"""How low the cross-entropy can get with unit weights and features on a sphere."""

import math

from guided_collapse.geometry.simplex import check_num_classes


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
