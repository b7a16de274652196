"""A classifier fixed at a simplex ETF from the start: the network has to turn its features towards it."""

import torch
from torch import Tensor

from guided_collapse.geometry.directions import Direction, frame_basis
from guided_collapse.geometry.simplex import frame_weight
from guided_collapse.heads.head import Head
from guided_collapse.heads.precision import SinglePrecisionState


class FixedETFHead(SinglePrecisionState, Head):
    """A simplex ETF that never moves, in the canonical or in a Haar-random direction.

    Args:
        feature_dim: d, at least num_classes - 1.
        num_classes: C, at least 2.
        temperature: tau, the norm of the features.
        direction: "canonical" or "random".
        centre: whether features are centred by their global mean.
        generator: source of a random direction; None takes torch's global generator.
    """

    weight: Tensor

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        temperature: float = 5.0,
        direction: Direction = "canonical",
        centre: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(feature_dim, num_classes, temperature=temperature, centre=centre)
        basis = frame_basis(feature_dim, num_classes, direction=direction, generator=generator)
        self.register_buffer("weight", frame_weight(basis).contiguous())

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        return self._centred(points) @ self.weight.to(points.dtype).T
