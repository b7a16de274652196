"""A classifier fixed at a simplex ETF from the start: the network has to turn its features towards it."""

import torch
from torch import Tensor

from guided_collapse.geometry.directions import Direction, frame_basis
from guided_collapse.geometry.simplex import frame_weight
from guided_collapse.heads.head import Head
from guided_collapse.heads.precision import SinglePrecisionState, state_dtype


class FixedETFHead(SinglePrecisionState, Head):
    """A simplex ETF that never moves, in the canonical or in a Haar-random direction.

    Args:
        feature_dim: d, at least num_classes - 1.
        num_classes: C, at least 2.
        temperature: tau, the norm of the features.
        direction: "canonical" or "random".
        centre: whether features are centred by their global mean.
        generator: source of a random direction; None takes torch's global generator.

    Example:
        >>> import torch
        >>> from guided_collapse import FixedETFHead
        >>> head = FixedETFHead(8, 3)
        >>> head(torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])).shape
        torch.Size([6, 3])
        >>> list(head.parameters())
        []
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
        self.direction: Direction = direction
        self.register_buffer("weight", torch.empty(num_classes, feature_dim, dtype=state_dtype()))
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sets the frame in its direction, a random one drawn anew, and forgets all batches."""
        super().reset_parameters()
        basis = frame_basis(
            self.feature_dim, self.num_classes, direction=self.direction, generator=generator, dtype=self.weight.dtype
        )
        self.weight.copy_(frame_weight(basis))

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        return self._centred(points) @ self.weight.to(points.dtype).T
