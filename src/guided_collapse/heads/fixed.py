"""A classifier fixed at a simplex ETF from the start: the network has to turn its features toward it."""

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import Direction
from guided_collapse.heads.frame_head import FrameHead


class FixedETFHead(FrameHead):
    """A frame that never moves, in the canonical or in a Haar-random direction: a simplex ETF, or a tight frame where none exists.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: tau, the norm of the features.
        direction: "canonical" or "random".
        center: whether features are centered by their global mean.
        generator: source of a random direction; None takes torch's global generator.
        check_values: whether to look at values at every step, which waits for the device; None does on a CPU.

    Example:
        >>> import torch
        >>> from guided_collapse import FixedETFHead
        >>> head = FixedETFHead(8, 3)
        >>> head(torch.randn(6, 8)).shape
        torch.Size([6, 3])
        >>> list(head.parameters())
        []
    """

    needs_labels = False

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        scale: float = 5.0,
        direction: Direction = "canonical",
        center: bool = True,
        generator: torch.Generator | None = None,
        check_values: bool | None = None,
    ) -> None:
        super().__init__(feature_dim, num_classes, scale=scale, center=center, direction=direction, check_values=check_values)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sets the frame in its direction, a random one drawn anew, and forgets all batches."""
        super().reset_parameters()
        self.frame.copy_(self._initial_frame(generator))

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        return self._centered(points, labels) @ self.frame.to(points.dtype).T
