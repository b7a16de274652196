"""The paper's implicit ETF: a classifier that always is the simplex ETF nearest to the running class means."""

import torch
from torch import Tensor

from guided_collapse.geometry.directions import Direction, frame_basis
from guided_collapse.geometry.nearest import check_proximal_weight, nearest_etf
from guided_collapse.geometry.operations import proximal_point
from guided_collapse.geometry.simplex import frame_weight
from guided_collapse.heads.head import Head
from guided_collapse.heads.precision import SinglePrecisionState, state_dtype
from guided_collapse.heads.running_means import RunningClassMeans, RunningMean
from guided_collapse.heads.snapshot import snapshot


class NearestETFHead(SinglePrecisionState, Head):
    """The simplex ETF nearest to the network's own class means, solved anew at every training step.

    It has no parameters: the weight is a function of the features, and with `implicit_gradient` the loss is differentiated through
    it (the paper's method). That gradient is scaled by the running means' share of the batch, 2/(t+1), so it fades with training.

    In training mode the weight is computed from the batch's own labels, so accuracy seen while training says little early on:
    compare heads in eval mode. `lagged=True` removes that leak: step t uses the frame of the steps before it.

    Args:
        feature_dim: d, at least num_classes - 1.
        num_classes: C, at least 2.
        temperature: tau, the norm of the features.
        proximal_weight: delta, the pull towards the frame of the step before. It is absolute, as in the paper: against the means it
            weighs delta (C-1)/2 at collapse, 0.0045 at 10 classes and 0.5 at 1000.
        implicit_gradient: whether gradients flow through the solve. Without effect for a lagged head, which needs none.
        lagged: classify with the frame of the steps before, and take in the batch afterwards.
        direction: initial direction, "canonical" or "random"; the first step solves from it without the proximal term.
        generator: source of a random direction; None takes torch's global generator.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFHead
        >>> head = NearestETFHead(8, 3)
        >>> head(torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])).shape
        torch.Size([6, 3])
        >>> head.eval()(torch.randn(2, 8)).shape
        torch.Size([2, 3])
    """

    weight: Tensor
    basis: Tensor
    """U, (feature_dim, num_classes), of the last step: the proximal point of the next."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        temperature: float = 5.0,
        proximal_weight: float = 1e-3,
        implicit_gradient: bool = True,
        lagged: bool = False,
        direction: Direction = "canonical",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(feature_dim, num_classes, temperature=temperature, centre=False)
        check_proximal_weight(proximal_weight)
        self.proximal_weight = proximal_weight
        self.implicit_gradient = implicit_gradient
        self.lagged = lagged
        self.direction: Direction = direction
        # One class after the other in memory, as the solve wants it.
        self.register_buffer("basis", torch.empty(num_classes, feature_dim, dtype=state_dtype()).T)
        self.register_buffer("weight", torch.empty(num_classes, feature_dim, dtype=state_dtype()))
        self.class_means = RunningClassMeans(feature_dim, num_classes)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sets the frame to its initial direction, a random one drawn anew, and forgets all batches."""
        self.class_means.reset_parameters()
        basis = frame_basis(
            self.feature_dim, self.num_classes, direction=self.direction, generator=generator, dtype=self.basis.dtype
        )
        self.basis.copy_(basis)
        self.weight.copy_(frame_weight(basis))

    @property
    def running_mean(self) -> RunningMean:
        """The running global mean f_G, part of the class means' state."""
        return self.class_means.global_mean

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        if self.lagged:
            weight = snapshot(self.weight).to(points.dtype)
            means = self.class_means.update_checked(points, labels)
            self._align(means.centred_class_means.detach())
        else:
            means = self.class_means.update_checked(points, labels)
            class_means = means.centred_class_means
            weight = self._align(class_means if self.implicit_gradient else class_means.detach())
        return (points - means.global_mean) @ weight.T

    def _align(self, centred_class_means: Tensor) -> Tensor:
        """Solves for the nearest frame, keeps it, and returns its weight, (num_classes, feature_dim), with gradient."""
        basis, weight = self._solve(centred_class_means)
        with torch.no_grad():
            self.basis.copy_(basis)
            self.weight.copy_(weight)
        return weight

    def _solve(self, centred_class_means: Tensor) -> tuple[Tensor, Tensor]:
        """The basis and the weight of the nearest frame, from where the step before left it."""
        is_first = self.class_means.steps == 1
        anchor = proximal_point(centred_class_means, self.basis.to(centred_class_means.dtype), is_first)
        solution = nearest_etf(centred_class_means, anchor, proximal_weight=self.proximal_weight)
        return solution.basis, solution.weight

    def extra_repr(self) -> str:
        """What `print(head)` says beside the submodules."""
        return (
            f"{super().extra_repr()}, proximal_weight={self.proximal_weight}, "
            f"implicit_gradient={self.implicit_gradient}, lagged={self.lagged}"
        )
