"""Harmonic tight frames: sampled sines and cosines, for more classes than a simplex ETF has room for."""

import math

import torch
from torch import Tensor

GOLDEN_RATIO = (1 + math.sqrt(5)) / 2


def harmonic_columns(num_classes: int, feature_dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Orthonormal columns that sum to zero: cosines and sines of whole frequencies f, cos(2 pi f c / C) and sin(2 pi f c / C).

    Times sqrt(C/d) they are a tight frame. Its rows have norm 1 when d is even, or C is: an odd column is then (-1)^c. When both
    are odd the last column is a cosine alone, and rows have norm 1 in the mean only.

    The frequencies are spread over all that there are, by the order of f^2 golden ratio mod 1. The lowest ones would put
    neighboring classes next to each other, and equally spaced ones would repeat themselves.

    Args:
        num_classes: C.
        feature_dim: d, at most num_classes - 2.

    Returns:
        (num_classes, feature_dim).
    """
    available = torch.arange(1, (num_classes - 1) // 2 + 1)
    spread = (available.double().square() * GOLDEN_RATIO).frac().argsort()
    frequencies = available[spread[: (feature_dim + 1) // 2]]
    classes = torch.arange(num_classes)
    # Whole numbers modulo C are exact, where large angles would be rounded.
    angles = (classes[:, None] * frequencies % num_classes).double() * (2 * math.pi / num_classes)
    num_pairs = feature_dim // 2
    columns = [angles[:, :num_pairs].cos(), angles[:, :num_pairs].sin()]
    if feature_dim % 2:
        alternating = (1 - 2 * (classes % 2)).double()[:, None] / math.sqrt(2)
        columns.append(alternating if num_classes % 2 == 0 else angles[:, num_pairs:].cos())
    return (math.sqrt(2 / num_classes) * torch.cat(columns, dim=1)).to(dtype or torch.get_default_dtype())
