"""The nearest-frame head for more classes than a simplex ETF allows."""

import math
from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry import NearestFrame, nearest_frame, tight_frame
from guided_collapse.geometry.nearest import Solver
from guided_collapse.geometry.products import vanishing_pull
from guided_collapse.geometry.tight import rounds_in_training
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.heads.state import held, replace, snapshot


class NearestTightFrameHead(NearestETFHead):
    """A classifier head that is always the tight frame with unit rows nearest to the class means; similar classes become neighbors.

    `NearestETFHead(feature_dim, num_classes)` builds it for num_classes > feature_dim + 1; the arguments are the same. It is lagged
    by default, so that a step touches only the classes in its batch, and its state is two matrices of the weight's size. With
    `lagged=False`, gradients flow through the alternating projections.
    """

    def _solve(self, class_means: Tensor) -> NearestFrame:
        basis = held(self.frame).T * math.sqrt(self.feature_dim / self.num_classes)
        state: Any = class_means, basis, snapshot(self.class_means.seen)
        options: Any = {"proximal_weight": self.proximal_weight, "solver": self.solver}
        if self.lagged:
            return solve_lagged(*state, first_step=self._known_steps == 1, **options)
        return solve(*state, first_step=self.class_means.steps == 1, **options)

    @torch.no_grad()
    def _store(self, nearest: NearestFrame, is_valid: Tensor | None) -> None:
        is_finite = torch.isfinite(nearest.weight).all()
        replace(self.frame, nearest.weight, is_finite if is_valid is None else is_valid & is_finite)

    def _register_basis(self, device: Any, dtype: torch.dtype) -> None:
        """Registers nothing, because the basis of a tight frame is a multiple of the frame."""
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
        """Resets the frame to its initial direction, redrawn if random, and the class means."""
        super(NearestETFHead, self).reset_parameters()
        sizes = self.feature_dim, self.num_classes
        frame = tight_frame(*sizes, direction=self.direction, generator=generator, dtype=self.frame.dtype)
        replace(self.frame, frame.to(self.frame.device))


def solve(class_means: Tensor, basis: Tensor, seen: Tensor, *, first_step: bool | Tensor = False, **options: Any) -> NearestFrame:
    """Returns the tight frame nearest to the class means, after the few rounds toward unit rows of a training step.

    Classes that are not `seen`, (num_classes,), take their row of the present frame as their mean, at the size of the other means;
    zero means would pull their rows together. The other arguments are those of `nearest_frame`.
    """
    feature_dim, num_classes = basis.shape
    size = torch.linalg.vector_norm(class_means) / seen.sum(dtype=class_means.dtype).clamp(min=1).sqrt()
    frame = (math.sqrt(num_classes / feature_dim) * basis.T).to(class_means.dtype)
    means = torch.where(seen[:, None], class_means, size * frame)
    return nearest_frame(means, basis, rounds=rounds_in_training(feature_dim, num_classes), first_step=first_step, **options)


def solve_lagged(
    class_means: Tensor, basis: Tensor, seen: Tensor, *, proximal_weight: float, solver: Solver | None, first_step: bool
) -> NearestFrame:
    """Does what `solve` does for a lagged head, whose first step has a vanishing proximal weight instead of a separate solve."""
    vanishing = vanishing_pull(basis.shape[0] + 1, proximal_weight)
    pull = vanishing if first_step else max(proximal_weight, vanishing)
    return solve(class_means, basis, seen, proximal_weight=pull, solver=solver)
