"""Large products: in which precision they can be taken, how many rows at once, and sums of outer products at half the work."""

from collections.abc import Iterator

import torch
from torch import Tensor

from guided_collapse.geometry.operations import float32_is_float32

COLUMN_BLOCKS = 4
# So many numbers of a product are held at once: those of all pairs of 4096 classes.
NUMBERS_AT_ONCE = 2**24
SAFE_IN_FLOAT32 = (1e-12, 1e12)
"""Between these, sums of products neither overflow nor vanish in float32."""


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision for products over features of this type: float32 for float32 and narrower ones, else float64.

    Only where products of float32 matrices are computed in float32: where TF32 or bfloat16 is allowed in its place
    (`torch.set_float32_matmul_precision`), with three digits or two, it is float64 for all.
    """
    return torch.float32 if dtype != torch.float64 and float32_is_float32() else torch.float64


def safe_in_float32(values: Tensor) -> bool:
    """Whether the norm of some values is neither so large nor so small that sums of their products leave the range of float32."""
    return SAFE_IN_FLOAT32[0] < float(torch.linalg.vector_norm(values)) < SAFE_IN_FLOAT32[1]


def norm_of_any_size(values: Tensor) -> Tensor:
    """The Euclidean norm, a scalar, also of values whose squares overflow or vanish."""
    largest = values.abs().amax()
    return torch.where(largest > 0, largest * torch.linalg.vector_norm(values / largest), largest)


def blocks_of_rows(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Parts of the rows of a product of these sizes, each of which fits into memory."""
    length = max(1, NUMBERS_AT_ONCE // num_columns)
    return (slice(start, start + length) for start in range(0, num_rows, length))


def add_outer_products(scatter: Tensor, rows: Tensor) -> None:
    """Adds rows' rows to the upper block triangle of `scatter`, in place.

    The product is symmetric, so only the blocks on and above the diagonal are computed: 5/8 of the multiplications with four
    blocks. `symmetrized` fills in the rest once, when the sum is complete.

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


def symmetrized(scatter: Tensor) -> Tensor:
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
