"""The uncertainty of a difference between two accuracies; without torch, because verdicts on records use it too."""

import math


def error_of_difference(one: float, other: float, num_samples: int) -> float:
    """Returns the standard error of the difference between two accuracies on `num_samples` samples each.

        sqrt((p_1 (1 - p_1) + p_2 (1 - p_2)) / (n + 2)),   p = (n accuracy + 1) / (n + 2)

    This is the error for classifiers that err independently, with the correction of Agresti and Caffo. Classifiers tend to err on
    the same samples, which makes the true error smaller.
    """
    rates = ((num_samples * accuracy + 1) / (num_samples + 2) for accuracy in (one, other))
    return math.sqrt(sum(rate * (1 - rate) for rate in rates) / (num_samples + 2))
