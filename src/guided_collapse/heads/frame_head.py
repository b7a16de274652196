"""What heads share whose weight is a frame: kept as state in float32 or wider, under a name that no linear layer has."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import Direction, frame_basis
from guided_collapse.geometry.nearest import tightness_defect
from guided_collapse.geometry.simplex import has_simplex_etf
from guided_collapse.geometry.tight import tight_frame
from guided_collapse.heads.head import Head
from guided_collapse.heads.precision import SinglePrecisionState, state_dtype


class FrameHead(SinglePrecisionState, Head):
    """A head whose weight is a frame: a simplex ETF, or for num_classes > feature_dim + 1, where there is none, a tight frame.

    A tight frame has W'W = (C/d) I, and unit rows as a simplex ETF has. Some of them must be nearer to each other than others.

    The buffer is called `frame`, so that the checkpoint of a linear layer, whose weight is no frame, cannot take its place.
    """

    frame: Tensor
    """W, (num_classes, feature_dim)."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        scale: float,
        center: bool,
        direction: Direction,
        check_values: bool | None,
    ) -> None:
        super().__init__(feature_dim, num_classes, scale=scale, center=center, check_values=check_values)
        self.direction: Direction = direction
        self.register_buffer("frame", torch.empty(num_classes, feature_dim, dtype=state_dtype()))

    @property
    def is_simplex(self) -> bool:
        """Whether the frame is a simplex ETF, and not a tight frame."""
        return has_simplex_etf(self.feature_dim, self.num_classes)

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim): unit rows."""
        return self.frame

    def _initial_basis(self, generator: torch.Generator | None) -> Tensor:
        """U, (feature_dim, num_classes), of a simplex ETF in the initial direction, a random one drawn anew."""
        return frame_basis(
            self.feature_dim, self.num_classes, direction=self.direction, generator=generator, dtype=self.frame.dtype
        )

    def _initial_frame(self, generator: torch.Generator | None) -> Tensor:
        """W, (num_classes, feature_dim), in the initial direction, a random one drawn anew."""
        return tight_frame(
            self.feature_dim, self.num_classes, direction=self.direction, generator=generator, dtype=self.frame.dtype
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Earlier versions called the frame `weight`.
        earlier = state_dict.get(f"{prefix}weight")
        if isinstance(earlier, Tensor) and f"{prefix}frame" not in state_dict and _is_frame(earlier):
            state_dict[f"{prefix}frame"] = state_dict.pop(f"{prefix}weight")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """What `print(head)` says beside the submodules."""
        return f"{super().extra_repr()}, frame={'simplex ETF' if self.is_simplex else 'tight, unit rows'}"


def _is_frame(weight: Tensor) -> bool:
    """Whether rows have norm 1 and are tight, as no linear layer's are; and sum to zero, if they are a simplex ETF."""
    if weight.ndim != 2 or weight.is_meta:
        return False
    weight = weight.double()
    num_classes, feature_dim = weight.shape
    norms = torch.linalg.vector_norm(weight, dim=1)
    if not bool((norms - 1).abs().max() < 1e-2):
        return False
    if has_simplex_etf(feature_dim, num_classes):
        return bool(weight.mean(dim=0).abs().max() < 1e-2)
    return bool(tightness_defect(weight) < 0.1)
