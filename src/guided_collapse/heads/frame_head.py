"""What heads share whose weight is a frame: kept as state in float32 or wider, under a name that no linear layer has."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry.directions import Direction, frame_basis
from guided_collapse.heads.head import Head
from guided_collapse.heads.precision import SinglePrecisionState, state_dtype


class FrameHead(SinglePrecisionState, Head):
    """A head whose weight is a frame.

    The buffer is called `frame`, so that the checkpoint of a linear layer, whose weight is no frame, cannot take its place.
    """

    frame: Tensor
    """W, (num_classes, feature_dim)."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        temperature: float,
        centre: bool,
        direction: Direction,
        check_values: bool | None,
    ) -> None:
        super().__init__(feature_dim, num_classes, temperature=temperature, centre=centre, check_values=check_values)
        self.direction: Direction = direction
        self.register_buffer("frame", torch.empty(num_classes, feature_dim, dtype=state_dtype()))

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim): unit rows."""
        return self.frame

    def _initial_basis(self, generator: torch.Generator | None) -> Tensor:
        """U, (feature_dim, num_classes), in the initial direction, a random one drawn anew."""
        return frame_basis(
            self.feature_dim, self.num_classes, direction=self.direction, generator=generator, dtype=self.frame.dtype
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Earlier versions called the frame `weight`.
        earlier = state_dict.get(f"{prefix}weight")
        if isinstance(earlier, Tensor) and f"{prefix}frame" not in state_dict and _is_frame(earlier):
            state_dict[f"{prefix}frame"] = state_dict.pop(f"{prefix}weight")
        super()._load_from_state_dict(state_dict, prefix, *args)


def _is_frame(weight: Tensor) -> bool:
    """Whether rows have norm 1 and sum to zero, as no linear layer's do."""
    if weight.ndim != 2 or weight.is_meta:
        return False
    norms = torch.linalg.vector_norm(weight.double(), dim=1)
    return bool((norms - 1).abs().max() < 1e-2) and bool(weight.double().mean(dim=0).abs().max() < 1e-2)
