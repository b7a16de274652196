"""Simplex equiangular tight frames (ETFs), the shape that classifiers and class means collapse to, and their orientations."""

import math
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.operations import ClosedGradient

Direction = Literal["canonical", "random"]


def center_classes(rows: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Returns the rows, one per class, minus their mean: P @ rows with P = I - 11'/C. `out` may be `rows`."""
    return torch.sub(rows, rows.mean(dim=0, keepdim=True), out=out)


def _unit_and_norm(matrix: Tensor) -> tuple[Tensor, Tensor]:
    # Divide by the largest entry first, so that squares neither overflow nor underflow. A zero matrix is divided by infinity and
    # stays zero.
    largest = functional.threshold(torch.linalg.vector_norm(matrix.detach(), ord=math.inf), 0.0, 1.0)
    scaled = matrix / largest
    norm = functional.threshold(torch.linalg.vector_norm(scaled), 0.0, math.inf)
    return scaled / norm, norm * largest


def _without_radial(grad: Tensor, needed: list[Tensor], matrix: Tensor) -> tuple[Tensor]:
    (norm,) = needed
    along = (grad * matrix).sum() / norm / norm
    return (torch.addcmul(grad, matrix, along, value=-1) / norm,)


unit_frobenius_norm = ClosedGradient(_unit_and_norm, _without_radial)
"""Returns the matrix divided by its Frobenius norm; a zero matrix stays zero and gets no gradient."""


def _centered_unit_and_norm(matrix: Tensor) -> tuple[Tensor, Tensor]:
    unit, norm = _unit_and_norm(matrix)
    return center_classes(unit), norm


centered_unit = ClosedGradient(
    _centered_unit_and_norm, lambda grad, needed, matrix: _without_radial(center_classes(grad), needed, matrix)
)
"""Returns P matrix/|matrix|_F, for a matrix with one row per class; a zero matrix stays zero."""


def simplex_etf(num_classes: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    r"""Returns the standard simplex ETF, (num_classes, num_classes).

    $$
    M = \sqrt{\frac{C}{C-1}} \left( I - \frac{1}{C} \mathbf{1}\mathbf{1}^\top \right)
    $$

    It is symmetric; its rows have norm 1, sum to zero, and have pairwise inner products -1/(C-1).

    Args:
        num_classes: C, at least 2.
        dtype, device: of the result; if None, torch's defaults.

    Example:
        >>> from guided_collapse import simplex_etf
        >>> frame = simplex_etf(3)
        >>> [[round(value, 4) for value in row] for row in (frame @ frame.T).tolist()]
        [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]
    """
    check_num_classes(num_classes)
    return frame_weight(torch.eye(num_classes, dtype=dtype, device=device))


def frame_weight(basis: Tensor) -> Tensor:
    """Returns the classifier weight W = M U', (num_classes, feature_dim), of a basis U, (feature_dim, num_classes)."""
    num_classes = basis.shape[1]
    return math.sqrt(num_classes / (num_classes - 1)) * center_classes(basis.T)


def frame_basis(
    feature_dim: int,
    num_classes: int,
    *,
    direction: Direction = "canonical",
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the basis U of a simplex ETF, (feature_dim, num_classes), in a canonical or random direction.

    For feature_dim >= num_classes, its columns are orthonormal, U'U = I. For feature_dim = num_classes - 1, there is no room for
    num_classes orthonormal columns; instead, its rows are orthonormal and orthogonal to the all-ones vector 1: UU' = I and U'U = I
    - 11'/C.

    Args:
        feature_dim: d, at least num_classes - 1.
        num_classes: C, at least 2.
        direction: "canonical" for the first columns of the identity or, for feature_dim = num_classes - 1, the transposed
            `helmert_basis`; "random" for a draw from the Haar measure.
        generator: for a random direction; if None, torch's global generator.
        dtype: of the result; if None, torch's default.

    Raises:
        ValueError: if no simplex ETF of this size exists, or the direction is unknown.
    """
    check_frame_exists(feature_dim, num_classes)
    check_direction(direction)
    num_columns = min(feature_dim, num_classes)
    if direction == "canonical":
        basis = torch.eye(feature_dim, num_columns, dtype=dtype)
    else:
        basis = haar_basis(feature_dim, num_columns, generator=generator, dtype=dtype)
    return basis if num_columns == num_classes else basis @ helmert_basis(num_classes, dtype=dtype).T


def haar_basis(
    num_rows: int, num_columns: int, *, generator: torch.Generator | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Returns orthonormal columns drawn from the Haar measure, (num_rows, num_columns)."""
    dtype = dtype or torch.get_default_dtype()
    # QR does not support half precision.
    gaussian = torch.randn(num_rows, num_columns, generator=generator, dtype=torch.promote_types(dtype, torch.float32))
    columns, triangle = torch.linalg.qr(gaussian)
    # The sign convention of QR would bias the distribution (Mezzadri, 2006).
    return (columns * torch.where(triangle.diagonal() < 0, -1, 1)).to(dtype)


def helmert_basis(num_classes: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Returns B, (num_classes, num_classes - 1), whose columns are an orthonormal basis of the complement of the all-ones vector 1.

    BB' = I - 11'/C.
    """
    order = torch.arange(1, num_classes, dtype=torch.float64)
    above = torch.ones(num_classes, num_classes - 1, dtype=torch.float64).triu()
    below = torch.cat([torch.zeros(1, num_classes - 1, dtype=torch.float64), torch.diag(-order)])
    return ((above + below) / (order * (order + 1)).sqrt()).to(dtype or torch.get_default_dtype())


def has_simplex_etf(feature_dim: int, num_classes: int) -> bool:
    """Returns whether a simplex ETF of this size exists."""
    return feature_dim >= num_classes - 1


def check_num_classes(num_classes: int) -> None:
    """Raises a TypeError or ValueError unless num_classes is an integer of at least 2."""
    check_integer("num_classes", num_classes, at_least=2)


def check_feature_dim(feature_dim: int) -> None:
    """Raises a TypeError or ValueError unless feature_dim is an integer of at least 1."""
    check_integer("feature_dim", feature_dim, at_least=1)


def check_integer(name: str, value: object, *, at_least: int) -> None:
    """Raises a TypeError or ValueError unless the value is a Python or numpy integer of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer; got {value!r}.")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}; got {name}={value}.")


def check_frame_exists(feature_dim: int, num_classes: int) -> None:
    """Raises a ValueError if no simplex ETF of this size exists."""
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if not has_simplex_etf(feature_dim, num_classes):
        raise ValueError(
            "feature_dim must be at least num_classes - 1 for a simplex ETF to exist; "
            f"got feature_dim={feature_dim}, num_classes={num_classes}. Widen the last layer or add a projection."
        )


def check_direction(direction: str) -> None:
    """Raises a ValueError for an unknown direction."""
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}; got {direction!r}.")
