"""Directions in which a simplex ETF may stand in feature space: the canonical one, and Haar-random ones."""

from typing import Literal, get_args

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import check_frame_exists

Direction = Literal["canonical", "random"]


def frame_basis(
    feature_dim: int,
    num_classes: int,
    *,
    direction: Direction = "canonical",
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The basis U of a frame in the chosen direction.

    For feature_dim >= num_classes its columns are orthonormal, U'U = I. For feature_dim = num_classes - 1, where so many
    orthonormal columns do not exist, its rows are orthonormal and orthogonal to 1: UU' = I and U'U = I - 11'/C.

    Args:
        direction: "canonical" takes the first columns of the identity; "random" is Haar-distributed.
        generator: source of the random direction; None takes torch's global generator.

    Returns:
        (feature_dim, num_classes).

    Raises:
        ValueError: for sizes without a simplex ETF, or an unknown direction.
    """
    check_frame_exists(feature_dim, num_classes)
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}; got {direction!r}.")
    num_columns = min(feature_dim, num_classes)
    if direction == "canonical":
        basis = torch.eye(feature_dim, num_columns, dtype=dtype)
    else:
        basis = haar_basis(feature_dim, num_columns, generator=generator, dtype=dtype)
    return basis if num_columns == num_classes else basis @ helmert_basis(num_classes, dtype=dtype).T


def haar_basis(
    num_rows: int, num_columns: int, *, generator: torch.Generator | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Orthonormal columns drawn from the Haar measure: QR of a Gaussian matrix, with the signs of R's diagonal put right.

    Without the correction of the signs the QR routine's own convention would decide the distribution (Mezzadri, 2006).

    Returns:
        (num_rows, num_columns), orthonormal columns.
    """
    dtype = dtype or torch.get_default_dtype()
    # There is no QR in half precision.
    gaussian = torch.randn(num_rows, num_columns, generator=generator, dtype=torch.promote_types(dtype, torch.float32))
    columns, triangle = torch.linalg.qr(gaussian)
    diagonal = triangle.diagonal()
    return (columns * torch.where(diagonal < 0, -torch.ones_like(diagonal), torch.ones_like(diagonal))).to(dtype)


def helmert_basis(num_classes: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """An orthonormal basis B of the complement of 1, BB' = I - 11'/C: column k compares class k+1 with the k+1 before it.

    Returns:
        (num_classes, num_classes - 1).
    """
    order = torch.arange(1, num_classes, dtype=torch.float64)
    above = torch.ones(num_classes, num_classes - 1, dtype=torch.float64).triu()
    below = torch.cat([torch.zeros(1, num_classes - 1, dtype=torch.float64), torch.diag(-order)])
    basis = above + below
    return (basis / (order * (order + 1)).sqrt()).to(dtype or torch.get_default_dtype())
