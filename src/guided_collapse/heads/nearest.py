"""The paper's classifier: at every step, the simplex ETF nearest to the running class means (sections 3.2 to 3.6)."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry import NearestFrame, frame_basis, nearest_etf
from guided_collapse.geometry.nearest import Solver, check_proximal_weight, checked_solver
from guided_collapse.geometry.simplex import Direction, frame_weight
from guided_collapse.heads.batch import Batch
from guided_collapse.heads.class_means import RunningClassMeans
from guided_collapse.heads.head import Options
from guided_collapse.heads.lagged import LaggedFrameHead
from guided_collapse.heads.state import held, replace, state_dtype


class NearestETFHead(LaggedFrameHead):
    """The simplex ETF nearest to the network's own class means, re-solved at every training step.

    One training step, given features h and their labels:

        1. Project onto the sphere, f = scale h/|h|, and center by the batch's mean f_G. Blend the batch's class means, scaled to
           unit Frobenius norm, into the running class means H with weight a = max(2/(t+1), 1e-4) at step t. Classes absent from
           the batch stay where they are; a class that was never seen is zero, and enters at full value when it is.
        2. Solve for the basis U with U'U = I that minimizes |H~ - U M~|^2 + (delta/2) |U - U_prox|^2, in closed form. U_prox is
           the previous step's U; H~ and M~ are H and the simplex ETF M = sqrt(C/(C-1)) (I - 11'/C) at unit Frobenius norm. The
           first step has no previous U: it solves without the proximal term (the initial direction settles what the means leave
           open), and then with that solution as U_prox. For d = C - 1 the problem is solved on the complement of 1.
        3. Classify with W = M U', the `frame`: logits = (f - f_G) W'.

    The head has no parameters. With `implicit_gradient` the loss is also differentiated through the solve (the paper's method);
    that part of the gradient is proportional to a, so it fades as training goes on. f_G carries gradient; U_prox and the running
    means before the batch are constants. Eval mode classifies with the last W and a running mean for f_G.

    In training mode W depends on the batch's own labels, so early training accuracy says little: compare heads in eval mode.
    `lagged=True` removes that leak: step t classifies with the frame from the previous steps and only then updates it, with labels
    from the call or from `head.update(labels)` afterward.

    For num_classes > feature_dim + 1 no simplex ETF exists, and the head becomes a `NearestTightFrameHead`.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: tau, the factor that multiplies the cosines; if None, chosen from the sizes, see `Head`. The paper uses 5.
        proximal_weight: delta. As in the paper, it is not rescaled with C: at collapse, its weight relative to the class means is
            delta (C-1)/2, by default 0.0045 with 10 classes and 0.5 with 1000.
        implicit_gradient: whether gradients flow through the solve; no effect on a lagged head.
        lagged: whether to classify with the frame from the previous steps; if None, only for num_classes > feature_dim + 1.
        every: number of steps between moves of a lagged frame; if None, 1, or more for a tight frame that is costly to move.
        direction: initial direction, "canonical" or "random".
        solver: "factors" or "products", see `nearest_etf`; if None, factors on a CPU and products elsewhere.
        generator: for a random direction; if None, torch's global generator.
        check_values, device, dtype: as for `Head`.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFHead
        >>> head = NearestETFHead(8, 3)
        >>> head(torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])).shape
        torch.Size([6, 3])
        >>> head.eval()(torch.randn(2, 8)).shape
        torch.Size([2, 3])
    """

    transposed_basis: Tensor
    """U' from the last solve, (num_classes, feature_dim): the proximal point of the next."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        scale: float | None = None,
        proximal_weight: float = 1e-3,
        implicit_gradient: bool = True,
        lagged: bool | None = None,
        every: int | None = None,
        direction: Direction = "canonical",
        solver: Solver | None = None,
        generator: torch.Generator | None = None,
        check_values: bool | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options: Options = {"scale": scale, "check_values": check_values, "device": device, "dtype": dtype}
        super().__init__(feature_dim, num_classes, direction=direction, lagged=lagged, every=every, **options)
        if type(self) is NearestETFHead and not self.is_simplex:
            from guided_collapse.heads.nearest_tight import NearestTightFrameHead

            self.__class__ = NearestTightFrameHead
        check_proximal_weight(proximal_weight)
        self.proximal_weight = proximal_weight
        self.implicit_gradient = implicit_gradient
        self.solver = solver and checked_solver(solver, self.frame.device)
        self.class_means = RunningClassMeans(feature_dim, num_classes, check_values=check_values, device=device, dtype=dtype)
        self._register_basis(device, state_dtype(dtype))
        self.reset_parameters(generator)

    def _training_logits(self, batch: Batch) -> Tensor:
        self._check_nothing_waits(batch)
        if self.lagged:
            logits = batch.logits(held(self.frame), center=True)
            if len(batch.labels) > 0:
                self._follow(batch)
            else:
                self._wait_for_labels(batch)
            return logits
        class_means, is_valid = self.class_means.take_in(batch)
        assert class_means is not None
        nearest = self._solve(class_means if self.implicit_gradient else class_means.detach())
        self._keep(nearest, is_valid)
        return batch.logits(nearest.weight, center=True)

    def _solve(self, class_means: Tensor) -> NearestFrame:
        return nearest_etf(
            class_means,
            held(self.transposed_basis).T,
            proximal_weight=self.proximal_weight,
            solver=self.solver,
            first_step=self.class_means.steps == 1,
        )

    @torch.no_grad()
    def _keep(self, nearest: NearestFrame, is_valid: Tensor | None) -> None:
        """Stores a solution as the state of the head, unless the batch is invalid."""
        replace(self.transposed_basis, nearest.basis.T, is_valid)
        replace(self.frame, nearest.weight, is_valid)

    def _register_basis(self, device: Any, dtype: torch.dtype) -> None:
        self.register_buffer("transposed_basis", torch.empty(self.num_classes, self.feature_dim, device=device, dtype=dtype))

    @property
    def basis(self) -> Tensor:
        """U from the last solve, (feature_dim, num_classes)."""
        return self.transposed_basis.T

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Resets the frame to its initial direction, redrawn if random, and the class means."""
        super().reset_parameters()
        sizes = self.feature_dim, self.num_classes
        basis = frame_basis(*sizes, direction=self.direction, generator=generator, dtype=self.frame.dtype)
        replace(self.transposed_basis, basis.T.to(self.frame.device))
        replace(self.frame, frame_weight(basis).to(self.frame.device))

    def config(self) -> dict[str, Any]:
        """The constructor's arguments as plain values."""
        names = ("proximal_weight", "implicit_gradient", "lagged", "every", "solver")
        return super().config() | {name: getattr(self, name) for name in names}
