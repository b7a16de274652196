"""The paper's classifier (Algorithm 1): at every step, the simplex ETF nearest to the running class means."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry import NearestFrame, frame_basis, nearest_etf
from guided_collapse.geometry.nearest import Solver, check_proximal_weight, checked_solver
from guided_collapse.geometry.simplex import Direction, frame_weight
from guided_collapse.heads.batch import center_batch
from guided_collapse.heads.class_means import RunningClassMeans
from guided_collapse.heads.head import Options
from guided_collapse.heads.lagged import LaggedFrameHead
from guided_collapse.heads.state import held, replace, snapshot, state_dtype


class NearestETFHead(LaggedFrameHead):
    """The simplex ETF nearest to the network's own class means, solved anew at every training step.

    One training step, on features f of norm `scale`:

        1. Center the batch and update the running class means H with the share a = max(2/(t+1), 1e-4) of the batch.
        2. Solve for the basis U with U'U = I that minimizes |H~ - U M~|^2 + (delta/2) |U - U_prox|^2, in closed form;
           U_prox is the basis of the step before, H~ and M~ are H and the standard simplex ETF with unit Frobenius norm.
        3. Classify with W = M U': logits = (f - f_G) W', with f_G the mean of the batch.

    The head has no parameters. With `implicit_gradient` the loss is differentiated through the solve as well (the paper's method);
    that part of the gradient is scaled by a, so it fades as training goes on. U_prox and the rescaling of the running means of
    classes absent from the batch are held constant.

    In training mode the weight depends on the batch's own labels, so early training accuracy says little: compare heads in eval
    mode. `lagged=True` removes that leak: step t classifies with the frame of the steps before and takes in the batch afterward.

    For num_classes > feature_dim + 1 no simplex ETF exists, and `NearestETFHead(...)` builds a `NearestTightFrameHead`.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: what multiplies the cosines (tau); None picks it from the sizes, see `Head`. The paper uses 5.
        proximal_weight: delta. It is absolute, as in the paper: at collapse it weighs delta (C-1)/2 against the class means, 0.0045
            with 10 classes and 0.5 with 1000.
        implicit_gradient: whether gradients flow through the solve; a lagged head has none to flow.
        lagged: whether to classify with the frame of the steps before; None does for num_classes > feature_dim + 1.
        every: number of steps between moves of a lagged frame; None is 1, or more for a tight frame that would slow down training.
        direction: initial direction, "canonical" or "random"; the first step solves from it without the proximal term.
        solver: "factors" or "products", see `nearest_etf`; None picks factors on a CPU and products elsewhere.
        generator: source of a random direction; None uses torch's global generator.
        check_values: whether to check values in every step; None does on a CPU.
        device: where the state lives.
        dtype: of the state, at least float32.

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
    """U', (num_classes, feature_dim), of the last solve: the proximal point of the next."""

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

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        self._check_nothing_waits(labels)
        batch = center_batch(points, labels, check_values=self.check_values)
        if self.lagged:
            logits = batch.centered @ held(self.frame).to(points.dtype).T
            self._follow(batch) if len(labels) > 0 else self._wait_for_labels(points)
            return logits
        class_means = self.class_means.take_in(batch)
        nearest = self._solve(class_means if self.implicit_gradient else class_means.detach())
        self._keep(nearest, batch.is_valid)
        return batch.centered @ nearest.weight.T

    def _solve(self, class_means: Tensor) -> NearestFrame:
        return nearest_etf(
            class_means,
            snapshot(self.transposed_basis).T,
            proximal_weight=self.proximal_weight,
            solver=self.solver,
            first_step=self.class_means.steps == 1,
        )

    @torch.no_grad()
    def _keep(self, nearest: NearestFrame, is_valid: Tensor) -> None:
        """Makes a solution the state of the head, unless the batch was not valid."""
        self.transposed_basis.copy_(torch.where(is_valid, nearest.basis.T, self.transposed_basis))
        replace(self.frame, torch.where(is_valid, nearest.weight, self.frame))

    def _register_basis(self, device: Any, dtype: torch.dtype) -> None:
        self.register_buffer("transposed_basis", torch.empty(self.num_classes, self.feature_dim, device=device, dtype=dtype))

    @property
    def basis(self) -> Tensor:
        """U, (feature_dim, num_classes), of the last solve."""
        return self.transposed_basis.T

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sets the frame to its initial direction, drawing a random one anew, and forgets all batches."""
        super().reset_parameters()
        sizes = self.feature_dim, self.num_classes
        basis = frame_basis(*sizes, direction=self.direction, generator=generator, dtype=self.frame.dtype)
        self.transposed_basis.copy_(basis.T)
        self.frame.copy_(frame_weight(basis))

    def config(self) -> dict[str, Any]:
        """The constructor's arguments as plain values."""
        names = ("proximal_weight", "implicit_gradient", "lagged", "every", "solver")
        return super().config() | {name: getattr(self, name) for name in names}
