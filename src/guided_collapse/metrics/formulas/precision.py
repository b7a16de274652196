"""In which precision the large products can be taken."""

import torch
from torch import Tensor

SAFE_IN_FLOAT32 = (1e-12, 1e12)
"""Between these, sums of products neither overflow nor vanish in float32."""


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision for products over features of this type: float32 for float32 and narrower ones, else float64.

    Only where products of float32 matrices are computed in float32: where TF32 or bfloat16 is allowed in its place
    (`torch.set_float32_matmul_precision`), with three digits or two, it is float64 for all.
    """
    return torch.float32 if dtype != torch.float64 and _products_are_float32() else torch.float64


def safe_in_float32(values: Tensor) -> bool:
    """Whether the norm of some values is neither so large nor so small that sums of their products leave the range of float32."""
    return SAFE_IN_FLOAT32[0] < float(torch.linalg.vector_norm(values)) < SAFE_IN_FLOAT32[1]


def norm_of_any_size(values: Tensor) -> Tensor:
    """The Euclidean norm, a scalar, also of values whose squares overflow or vanish."""
    largest = values.abs().amax()
    return torch.where(largest > 0, largest * torch.linalg.vector_norm(values / largest), largest)


def _products_are_float32() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # Torch refuses to answer where the newer switches, one for each backend, have been set to less.
        return False
