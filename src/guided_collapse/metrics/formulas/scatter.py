"""Sums of outer products, at half the work of a matrix product."""

import torch
from torch import Tensor

COLUMN_BLOCKS = 4


def add_outer_products(scatter: Tensor, rows: Tensor) -> None:
    """Adds rows' rows to the upper block triangle of `scatter`, in place.

    The product is symmetric, so only the blocks on and above the diagonal are computed: 5/8 of the multiplications with four
    blocks. `symmetrised` fills in the rest once, when the sum is complete.

    Args:
        scatter: (feature_dim, feature_dim), float64.
        rows: (num_rows, feature_dim), whose products are taken in their own precision.
    """
    width = -(-len(scatter) // COLUMN_BLOCKS)
    for start in range(0, len(scatter), width):
        block, left, right = scatter[start : start + width, start:], rows[:, start : start + width].T, rows[:, start:]
        if rows.dtype == scatter.dtype:
            block.addmm_(left, right)
        else:
            block.add_(left @ right)


def symmetrised(scatter: Tensor) -> Tensor:
    """The symmetric matrix whose upper triangle is given: (feature_dim, feature_dim)."""
    upper = scatter.triu(1)
    return upper + upper.T + scatter.diagonal().diag()


def nearly_singular(scatter: Tensor, tolerance: float) -> bool:
    """Whether some direction has less than `tolerance` of the scatter that it had if dimensions were independent.

    Dimensions without any scatter do not count.

    Args:
        scatter: (feature_dim, feature_dim), float64.
        tolerance: at most 1.
    """
    units = torch.where(scatter.diagonal() > 0, scatter.diagonal().rsqrt(), 0)
    correlations = scatter * units * units[:, None]
    correlations.diagonal().fill_(1 - tolerance)
    return bool(torch.linalg.cholesky_ex(correlations).info)
