"""Fixed frames for any number of classes: the canonical one, and random ones."""

import math
from typing import get_args

import torch
from torch import Tensor

from guided_collapse.geometry.directions import Direction, frame_basis
from guided_collapse.geometry.frames import nearest_frame
from guided_collapse.geometry.simplex import center_classes, check_feature_dim, check_num_classes, frame_weight
from guided_collapse.geometry.tight.harmonic import harmonic_columns

# They are near to nothing that matters, and need to be tight alone.
ROUNDS_OF_FIXED_FRAMES = 20


def tight_frame(
    num_classes: int,
    feature_dim: int,
    *,
    direction: Direction = "canonical",
    unit_rows: bool = True,
    rounds: int = ROUNDS_OF_FIXED_FRAMES,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The weight W of a frame in the chosen direction, for any sizes: a simplex ETF where one exists, otherwise a tight frame.

    Args:
        num_classes: C, at least 2.
        feature_dim: d, at least 1.
        direction: "canonical" is that of `frame_basis`, or for num_classes > feature_dim + 1 the harmonic frame, sines and cosines.
            "random" is Haar-distributed there: the polar factor of a centered Gaussian matrix, whose columns are orthogonal to 1.
        unit_rows: whether each row has norm 1, by the rounds of `nearest_frame`, from a frame whose rows have norm 1 in the mean. A
            canonical frame has unit rows without them if feature_dim or num_classes is even.
        rounds: as in `nearest_frame`.
        generator: source of the random direction; None takes torch's global generator.

    Returns:
        (num_classes, feature_dim).

    Raises:
        ValueError: for fewer than two classes, no dimension, or an unknown direction.

    Example:
        >>> from guided_collapse.geometry.tight.tight import tight_frame
        >>> [[round(value, 4) + 0.0 for value in row] for row in tight_frame(4, 2).tolist()]
        [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if feature_dim >= num_classes - 1:
        return frame_weight(frame_basis(feature_dim, num_classes, direction=direction, generator=generator, dtype=dtype))
    if direction not in get_args(Direction):
        raise ValueError(f"direction must be one of {', '.join(get_args(Direction))}; got {direction!r}.")
    dtype = dtype or torch.get_default_dtype()
    computed = torch.promote_types(dtype, torch.float32)
    if direction == "random":
        gaussian = torch.randn(num_classes, feature_dim, generator=generator, dtype=computed)
        return nearest_frame(center_classes(gaussian), unit_rows=unit_rows, rounds=rounds).weight.to(dtype)
    columns = harmonic_columns(num_classes, feature_dim, dtype=computed)
    if unit_rows and feature_dim % 2 and num_classes % 2:
        return nearest_frame(columns, rounds=rounds).weight.to(dtype)
    return (math.sqrt(num_classes / feature_dim) * columns).to(dtype)
