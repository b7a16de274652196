"""Simplex equiangular tight frames: the shape that classifiers and class means collapse to."""

import math

import numpy as np
import torch
from torch import Tensor


def center_classes(rows: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The rows minus their mean: P @ rows, with the projector P = I - 11'/C.

    This is the only place where P is applied; nothing builds it as a matrix, so the cost is O(C d).

    Args:
        rows: (num_classes, ...), one class per row.
        out: where to put the result; may be `rows` itself.

    Returns:
        (num_classes, ...), rows that sum to zero.
    """
    return torch.sub(rows, rows.mean(dim=0, keepdim=True), out=out)


def simplex_etf(num_classes: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """The standard simplex ETF with unit rows, M = sqrt(C/(C-1)) (I - 11'/C).

    Args:
        num_classes: C, at least 2.

    Returns:
        (num_classes, num_classes): unit rows whose inner products are -1/(C-1).

    Raises:
        ValueError: for fewer than two classes.

    Example:
        >>> from guided_collapse import simplex_etf
        >>> frame = simplex_etf(3)
        >>> [[round(value, 4) for value in row] for row in (frame @ frame.T).tolist()]
        [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    """
    check_num_classes(num_classes)
    return frame_scale(num_classes) * center_classes(torch.eye(num_classes, dtype=dtype, device=device))


def frame_weight(basis: Tensor) -> Tensor:
    """The classifier weight of a frame, W = M U': unit rows that sum to zero.

    Args:
        basis: U, (feature_dim, num_classes).

    Returns:
        (num_classes, feature_dim).
    """
    return frame_scale(basis.shape[1]) * center_classes(basis.T)


def frame_scale(num_classes: int) -> float:
    """sqrt(C/(C-1)), which gives the rows of a centered frame unit norm."""
    return math.sqrt(num_classes / (num_classes - 1))


def check_num_classes(num_classes: int) -> None:
    """Refuses fewer than two classes."""
    if not _is_whole(num_classes):
        raise ValueError(f"num_classes must be a whole number; got {num_classes!r}.")
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, one class has nothing to be told from; got num_classes={num_classes}.")


def check_feature_dim(feature_dim: int) -> None:
    """Refuses features without a dimension."""
    if not _is_whole(feature_dim) or feature_dim < 1:
        raise ValueError(f"feature_dim must be a whole number, at least 1; got {feature_dim!r}.")


def has_simplex_etf(feature_dim: int, num_classes: int) -> bool:
    """Whether there is a simplex ETF of these sizes."""
    return feature_dim >= num_classes - 1


def check_frame_exists(feature_dim: int, num_classes: int) -> None:
    """Refuses sizes for which no simplex ETF exists."""
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if not has_simplex_etf(feature_dim, num_classes):
        raise ValueError(
            "feature_dim must be at least num_classes - 1 for a simplex ETF to exist; "
            f"got feature_dim={feature_dim}, num_classes={num_classes}. Widen the last layer or add a projection."
        )


def _is_whole(size: object) -> bool:
    return isinstance(size, int | np.integer) and not isinstance(size, bool)
