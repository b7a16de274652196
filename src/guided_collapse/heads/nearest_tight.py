"""The nearest-frame head for more classes than a simplex ETF can have in the feature dimension."""

import math
from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry import NearestFrame, tight_frame
from guided_collapse.heads.lagged import nearest_tight_frame, nearest_tight_frame_lagged
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.heads.state import held, replace, snapshot


class NearestTightFrameHead(NearestETFHead):
    """A classifier head that is always the tight frame with unit rows nearest to the class means; similar classes become neighbors.

    `NearestETFHead(feature_dim, num_classes)` builds this head for num_classes > feature_dim + 1, from the same arguments. It is
    lagged by default, so that a step that does not update the frame touches only the classes in its batch. Its state consists
    mainly of two matrices of the size of the weight. With `lagged=False`, gradients flow through the rounds of `nearest_frame`.
    """

    def _solve(self, class_means: Tensor) -> NearestFrame:
        basis = held(self.frame).T * math.sqrt(self.feature_dim / self.num_classes)
        state: Any = class_means, basis, snapshot(self.class_means.seen)
        options: Any = {"proximal_weight": self.proximal_weight, "solver": self.solver}
        if self.lagged:
            return nearest_tight_frame_lagged(*state, first_step=self._known_steps == 1, **options)
        return nearest_tight_frame(*state, first_step=self.class_means.steps == 1, **options)

    @torch.no_grad()
    def _store(self, nearest: NearestFrame, is_valid: Tensor | None) -> None:
        is_finite = torch.isfinite(nearest.weight).all()
        replace(self.frame, nearest.weight, is_finite if is_valid is None else is_valid & is_finite)

    def _register_basis(self, device: Any, dtype: torch.dtype) -> None:
        """Registers nothing, because the basis is a multiple of the frame. Raises a ValueError if the frame is a simplex ETF."""
        if self.is_simplex:
            raise ValueError(
                "num_classes must be greater than feature_dim + 1 for a tight frame that is not a simplex ETF; "
                f"got feature_dim={self.feature_dim}, num_classes={self.num_classes}. Use NearestETFHead."
            )

    @property
    def basis(self) -> Tensor:
        """U = sqrt(d/C) W', (feature_dim, num_classes)."""
        return self.frame.T * math.sqrt(self.feature_dim / self.num_classes)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Resets the class means, and the frame to its initial direction; a random direction is drawn again."""
        super(NearestETFHead, self).reset_parameters()
        sizes = self.feature_dim, self.num_classes
        frame = tight_frame(*sizes, direction=self.direction, generator=generator, dtype=self.frame.dtype)
        replace(self.frame, frame.to(self.frame.device))
