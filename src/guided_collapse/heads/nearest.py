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
    r"""A classifier head that is always the simplex ETF nearest to the network's own class means.

    It replaces the last `nn.Linear` of a network and has no parameters.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFHead
        >>> backbone = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU())
        >>> head = NearestETFHead(64, 10)  # 64 features, 10 classes
        >>> optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)
        >>> inputs, labels = torch.randn(100, 20), torch.arange(100) % 10
        >>> logits = head(backbone(inputs), labels)  # training mode: with labels
        >>> torch.nn.functional.cross_entropy(logits, labels).backward()
        >>> optimizer.step()
        >>> head.eval()(backbone(inputs)).shape  # eval mode: without labels
        torch.Size([100, 10])

    In training mode, the head takes features $h$, (num_samples, feature_dim), and their labels, (num_samples,), and

    1. projects the features onto the sphere of radius $\tau$, the `scale`, and centers them by the mean of the batch:
       $f = \tau h / \lVert h \rVert - \bar f$;
    2. updates the running class means $\tilde H$ with the class means of the batch (see `RunningClassMeans`);
    3. solves for the frame nearest to $\tilde H$, with the previous solution as the proximal point (see `nearest_etf`):

        $$
        W = M U^\top, \qquad
        U = \operatorname*{arg\,min}_{U^\top U = I} \; \lVert \tilde H - U \tilde M \rVert_F^2
        + \frac{\delta}{2} \lVert U - U_{\text{prox}} \rVert_F^2;
        $$

    4. returns the logits $f W^\top$, (num_samples, num_classes).

    Gradients flow through all four steps, as in the paper (sections 3.2 to 3.6), while $U_{\text{prox}}$ and the class means of
    earlier batches are constants. With `implicit_gradient=False`, no gradient flows through steps 2 and 3. The gradient through
    these two steps is proportional to the weight of the batch in the running class means, so it fades as training goes on.

    In eval mode, the head is a constant classifier with the last $W$, and features are centered by a running mean. It takes no
    labels, and the logits of a sample do not depend on the rest of its batch.

    In training mode, $W$ depends on the labels of the batch that it classifies, so accuracy in training mode is biased: judge
    models in eval mode. `lagged=True` removes this leak. A lagged head classifies with the frame from previous steps and updates it
    afterward, either with the labels from the call or, after `head(features)` and the loss, by `head.update(labels)`.

    The `scale` multiplies the cosines between features and rows of $W$. The larger it is, the lower the least possible loss,
    $\log(1 + (C-1) e^{-\tau C / (C-1)})$. With the default scale, the correct class has a probability of 0.9 at the least possible
    loss: the scale is 4.0 for 10 classes and 6.7 for 100.

    For num_classes > feature_dim + 1 there is no room for a simplex ETF, and the head becomes a `NearestTightFrameHead`.

    Args:
        feature_dim: d, the width of the features, at least 2.
        num_classes: C, at least 2.
        scale: tau, the factor that multiplies the cosines; if None, the default described above. The paper uses 5.
        proximal_weight: delta. As in the paper, it is not rescaled with C: at collapse, its weight relative to the class means is
            delta (C-1)/2, by default 0.0045 with 10 classes and 0.5 with 1000.
        implicit_gradient: whether gradients flow through the solve; no effect on a lagged head.
        lagged: whether to classify with the frame from previous steps; if None, only for num_classes > feature_dim + 1.
        every: number of steps between updates of a lagged frame; if None, 1 or, for a tight frame that is costly to update, more.
        direction: the direction of the initial frame, "canonical" or "random".
        solver: "factors" or "products", see `nearest_etf`; if None, "factors" on a CPU and "products" elsewhere.
        generator: for a random direction; if None, torch's global generator.
        check_values, device, dtype: as for `Head`.

    Raises:
        TypeError, ValueError: for arguments of the wrong type or out of range.
    """

    transposed_basis: Tensor
    """U' from the last solve, (num_classes, feature_dim): the proximal point of the next solve."""

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
        self._check_nothing_pending(batch)
        if self.lagged:
            logits = batch.logits(held(self.frame), center=True)
            if len(batch.labels) > 0:
                self._update_frame(batch)
            else:
                self._keep_pending(batch)
            return logits
        class_means, is_valid = self.class_means.add_batch(batch)
        assert class_means is not None
        nearest = self._solve(class_means if self.implicit_gradient else class_means.detach())
        self._store(nearest, is_valid)
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
    def _store(self, nearest: NearestFrame, is_valid: Tensor | None) -> None:
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
        """Resets the class means, and the frame to its initial direction; a random direction is drawn again."""
        super().reset_parameters()
        sizes = self.feature_dim, self.num_classes
        basis = frame_basis(*sizes, direction=self.direction, generator=generator, dtype=self.frame.dtype)
        replace(self.transposed_basis, basis.T.to(self.frame.device))
        replace(self.frame, frame_weight(basis).to(self.frame.device))

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""
        names = ("proximal_weight", "implicit_gradient", "lagged", "every", "solver")
        return super().config() | {name: getattr(self, name) for name in names}
