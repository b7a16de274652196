"""A classifier fixed at a simplex ETF."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry import tight_frame
from guided_collapse.geometry.simplex import Direction
from guided_collapse.heads.batch import Batch
from guided_collapse.heads.head import FrameHead, Options


class FixedETFHead(FrameHead):
    """A classifier head that stays at a fixed simplex ETF, so that the network learns to align its features with it.

    For num_classes > feature_dim + 1, the frame is a tight frame with unit rows. The head has no parameters and needs no labels.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: the factor that multiplies the cosines; if None, chosen from the sizes (see `Head`).
        direction: "canonical", or "random" for a Haar-random frame.
        center: whether to subtract the mean of the features.
        generator: for a random direction; if None, torch's global generator.
        check_values, device, dtype: as for `Head`.

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
        scale: float | None = None,
        direction: Direction = "canonical",
        center: bool = True,
        generator: torch.Generator | None = None,
        check_values: bool | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options: Options = {"scale": scale, "check_values": check_values, "device": device, "dtype": dtype}
        super().__init__(feature_dim, num_classes, center=center, direction=direction, **options)
        self.reset_parameters(generator)

    def _training_logits(self, batch: Batch) -> Tensor:
        return self._logits(batch, self.frame)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Resets the frame and the running mean; a random frame is drawn again."""
        super().reset_parameters()
        frame = tight_frame(
            self.feature_dim, self.num_classes, direction=self.direction, generator=generator, dtype=self.frame.dtype
        )
        self.frame.copy_(frame)

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""
        return super().config() | {"center": self.centering is not None}
