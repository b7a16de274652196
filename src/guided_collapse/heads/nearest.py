"""The paper's implicit ETF: a classifier that always is the frame nearest to the running class means, for any number of classes."""

import math
from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import Direction
from guided_collapse.geometry.training_step import weight_of
from guided_collapse.geometry.nearest import Solver, check_proximal_weight, checked_solver
from guided_collapse.geometry.operations import is_transformed
from guided_collapse.geometry.operations import without_autocast
from guided_collapse.geometry.training_step import usual_size, with_unseen
from guided_collapse.geometry.training_step import basis_when_due, default_every, frame_when_due, next_basis, next_tight_frame
from guided_collapse.heads.frame_head import FrameHead
from guided_collapse.heads.means.batch import batch_mean, check_shapes, checked_values, looks_at_values
from guided_collapse.heads.means.running_means import RunningClassMeans, RunningMean
from guided_collapse.heads.means.sparse_means import SparseClassMeans
from guided_collapse.heads.means.targets import flat_labels
from guided_collapse.heads.means.waiting import check_nothing_waits, waiting_points
from guided_collapse.heads.precision import state_dtype
from guided_collapse.heads.snapshot import snapshot


class NearestETFHead(FrameHead):
    """The frame nearest to the network's own class means, solved anew as training goes on.

    It is a simplex ETF, and for num_classes > feature_dim + 1, where there is none, a tight frame with unit rows: similar classes
    are then next to each other, as some have to be.

    It has no parameters: the weight is a function of the features, and with `implicit_gradient` the loss is differentiated through
    it (the paper's method). That gradient is scaled by the running means' share of the batch, 2/(t+1), so it fades with training.

    In training mode the weight is computed from the batch's own labels, so accuracy seen while training says little early on:
    compare heads in eval mode. `lagged=True` removes that leak: step t uses the frame of the steps before it. With more than
    feature_dim + 1 classes it is the default, and then a step looks at the classes of its batch only, and the state is two
    matrices of the weight's size. A third is there while the frame moves.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: tau, the norm of the features.
        proximal_weight: delta, the pull toward the frame of the step before. It is absolute, as in the paper: against the means it
            weighs delta m/2 at collapse, with m the smaller of C-1 and d: 0.0045 at 10 classes and 0.5 at 1000.
        implicit_gradient: whether gradients flow through the solve. Without effect for a lagged head, which needs none.
        lagged: classify with the frame of the steps before, and take in the batch afterward. None does so for
            num_classes > feature_dim + 1.
        every: after how many steps a lagged frame moves; the class means take in every batch. None takes `default_every`: 1, unless
            a tight frame would then cost more than a tenth of training; 51 for 100,000 classes and 256 features. (Compiled for an
            accelerator, a head with more than one asks the device at each step whether it is time.)
        direction: initial direction, "canonical" or "random"; the first step solves from it without the proximal term.
        solver: "factors" or "products", as for `nearest_etf`; None takes factors on a CPU and products elsewhere.
        generator: source of a random direction; None takes torch's global generator.
        check_values: whether to look at values at every step, which waits for the device; None does on a CPU.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFHead
        >>> head = NearestETFHead(8, 3)
        >>> head(torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])).shape
        torch.Size([6, 3])
        >>> head.eval()(torch.randn(2, 8)).shape
        torch.Size([2, 3])
        >>> NearestETFHead(8, 100).lagged
        True
    """

    transposed_basis: Tensor | None
    """U', (num_classes, feature_dim), of the last solve: the proximal point of the next. None for a tight frame."""
    class_means: RunningClassMeans

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        scale: float = 5.0,
        proximal_weight: float = 1e-3,
        implicit_gradient: bool = True,
        lagged: bool | None = None,
        every: int | None = None,
        direction: Direction = "canonical",
        solver: Solver | None = None,
        generator: torch.Generator | None = None,
        check_values: bool | None = None,
    ) -> None:
        super().__init__(feature_dim, num_classes, scale=scale, center=False, direction=direction, check_values=check_values)
        check_proximal_weight(proximal_weight)
        self.proximal_weight = proximal_weight
        self.implicit_gradient = implicit_gradient
        self.lagged = not self.is_simplex if lagged is None else lagged
        self.needs_labels = not self.lagged
        self.every = _checked_every(every, lagged=self.lagged, default=default_every(feature_dim, num_classes))
        self.solver = solver and checked_solver(solver, self.frame.device)
        basis = torch.empty(num_classes, feature_dim, dtype=state_dtype()) if self.is_simplex else None
        self.register_buffer("transposed_basis", basis)
        means = SparseClassMeans if self.lagged and not self.is_simplex else RunningClassMeans
        self.class_means = means(feature_dim, num_classes, check_values=check_values)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sets the frame to its initial direction, a random one drawn anew, and forgets all batches."""
        self.class_means.reset_parameters()
        # How many batches were taken in, as far as that is known without asking the device.
        self._known_steps: int | None = 0
        self._waiting: Tensor | None = None
        if self.transposed_basis is None:
            self.frame.copy_(self._initial_frame(generator))
        else:
            basis = self._initial_basis(generator)
            self.transposed_basis.copy_(basis.T)
            self.frame.copy_(weight_of(basis))

    @property
    def basis(self) -> Tensor:
        """U, (feature_dim, num_classes), of the last solve."""
        if self.transposed_basis is None:
            return self.frame.T * math.sqrt(self.feature_dim / self.num_classes)
        return self.transposed_basis.T

    @property
    def running_mean(self) -> RunningMean:
        """The running global mean f_G, part of the class means' state."""
        return self.class_means.global_mean

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        if len(labels) > 0 or torch.is_grad_enabled():
            check_nothing_waits(self._waiting)
        global_mean, is_known = batch_mean(points, labels)
        centered = points - global_mean
        if self.lagged:
            # A tight frame is replaced when it moves, so that graphs may keep the one there is.
            is_replaced = isinstance(self.class_means, SparseClassMeans) and not _changes_in_place()
            weight = self.frame.detach() if is_replaced else snapshot(self.frame)
            if len(labels) > 0:
                self._take_in(centered.detach(), global_mean.detach(), labels, is_known)
            elif torch.is_grad_enabled():
                self._waiting = points.detach()
            return centered @ weight.to(points.dtype).T
        class_means = self.class_means.take_in(centered, global_mean, labels)
        basis = self._solve(class_means if self.implicit_gradient else class_means.detach())
        self._keep(basis, is_known)
        return centered @ weight_of(basis).T

    def update(self, labels: Tensor) -> None:
        """Takes in the batch that the last forward pass in training mode has classified without labels; a lagged head alone does.

        `logits = model(inputs)`, then the loss, then `head.update(labels)` does what handing over the labels beforehand does. Under
        `torch.no_grad()` a forward pass without labels leaves no batch to take in.

        Samples whose label is -100 are left out of the means, but not of the centering of logits that were given before.

        Args:
            labels: as `forward` takes them.

        Raises:
            RuntimeError: for a head that is not lagged, or if no batch waits.
            ValueError: for labels that do not fit the batch; the state is then as it was, and the batch still waits.
        """
        if not self.lagged:
            raise RuntimeError(
                "head.update(labels) is for a lagged head: any other classifies with the batch's own class means, and needs the "
                "labels first; got lagged=False. Use `with head.labels(labels): logits = model(inputs)`, or make it lagged=True."
            )
        points = waiting_points(self._waiting)
        if isinstance(labels, Tensor) and labels.ndim > 1:
            labels = flat_labels(labels, points.dtype)
        check_shapes(points, labels, feature_dim=self.feature_dim, num_classes=self.num_classes, training=True)
        checked_values(points, labels, self.num_classes, training=True, state=self.frame.dtype, check_values=self.check_values)
        with torch.no_grad(), without_autocast(points.device):
            labels = flat_labels(labels, points.dtype)
            global_mean, is_known = batch_mean(points, labels)
            self._take_in(points - global_mean, global_mean, labels, is_known)
        self._waiting = None

    def forget(self) -> None:
        """Leaves out the batch whose labels have not come, if there is one."""
        self._waiting = None

    @torch.no_grad()
    def _take_in(self, centered: Tensor, global_mean: Tensor, labels: Tensor, is_known: Tensor) -> None:
        """Moves the class means of a lagged head, and the frame if it is time."""
        if isinstance(self.class_means, SparseClassMeans):
            self._take_in_and_follow(self.class_means, centered, global_mean, labels, is_known)
        else:
            self._follow(self.class_means.take_in(centered, global_mean, labels), is_known)

    def _solve(self, centered_class_means: Tensor) -> Tensor:
        """The basis of the nearest frame, from where the step before left it, with gradient."""
        # What has the frame's own memory must be a copy.
        basis = self.basis if self.transposed_basis is None else snapshot(self.transposed_basis).T
        is_first = self.class_means.steps == 1
        if not self.is_simplex:
            seen, frame = snapshot(self.class_means.seen), snapshot(self.frame).to(centered_class_means.dtype)
            size = usual_size(centered_class_means.detach(), seen)
            centered_class_means = with_unseen(centered_class_means, frame, seen, size)
        return next_basis(centered_class_means, basis, is_first, proximal_weight=self.proximal_weight, solver=self.solver)

    def _follow(self, centered_class_means: Tensor, is_known: Tensor) -> None:
        """Moves the frame of a lagged head if it is time."""
        if self.every > 1 and torch.compiler.is_compiling():
            self._known_steps = None
            basis = basis_when_due(
                centered_class_means,
                self.basis,
                self.class_means.steps,
                every=self.every,
                proximal_weight=self.proximal_weight,
                solver=self.solver,
            )
            self._keep(basis, is_known)
        elif self.every == 1 or self._is_due(self._count_step()):
            self._keep(self._solve(centered_class_means), is_known)

    def _take_in_and_follow(
        self, class_means: SparseClassMeans, centered: Tensor, global_mean: Tensor, labels: Tensor, is_known: Tensor
    ) -> None:
        """Takes in a batch, and moves a tight frame if it is time."""
        class_means.take_in_rows(centered, global_mean, labels)
        if torch.compiler.is_compiling():
            self._known_steps = None
            class_means.fold()
            frame = frame_when_due(
                class_means.running,
                snapshot(self.frame),
                snapshot(class_means.seen),
                class_means.steps,
                every=self.every,
                proximal_weight=self.proximal_weight,
                solver=self.solver,
            )
            self.frame.copy_(torch.where(is_known, frame, self.frame))
            return
        step = self._count_step()
        if self._is_due(step):
            class_means.fold()
            frame = next_tight_frame(
                class_means.running,
                self.frame,
                class_means.seen,
                is_first=step == 1,
                proximal_weight=self.proximal_weight,
                solver=self.solver,
            )
            torch.where(is_known, frame, self.frame, out=frame)
            if _changes_in_place():
                self.frame.copy_(frame)
            else:
                # The graphs of earlier steps keep what they were computed with, which saves every step a copy.
                self.frame.data = frame

    def _count_step(self) -> int:
        """How many batches were taken in, with the one that just was."""
        steps = self.class_means.steps
        # Where values are looked at anyway, the state itself says so, whoever has written to it. Elsewhere a batch is counted whose
        # samples are all left out, though it is no step.
        if self._known_steps is None or (looks_at_values(self.check_values, steps.device) and not is_transformed()):
            self._known_steps = int(steps)
        else:
            self._known_steps += 1
        return self._known_steps

    def _is_due(self, step: int) -> bool:
        """Whether a step is one of 1, 1 + every, 1 + 2 every, ..."""
        return (step - 1) % self.every == 0

    @torch.no_grad()
    def _keep(self, basis: Tensor, is_known: Tensor) -> None:
        """Makes a basis, (feature_dim, num_classes), that of the head, if it is finite and of a batch that is known."""
        if not looks_at_values(self.check_values, basis.device):
            is_known = is_known & torch.isfinite(basis).all()
        if self.transposed_basis is not None:
            self.transposed_basis.copy_(torch.where(is_known, basis.T, self.transposed_basis))
        self.frame.copy_(torch.where(is_known, weight_of(basis), self.frame))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._known_steps = None
        self._waiting = None
        # Earlier versions kept U instead of U'.
        earlier = state_dict.pop(f"{prefix}basis", None)
        if isinstance(earlier, Tensor):
            state_dict[f"{prefix}transposed_basis"] = earlier.T.contiguous()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """What `print(head)` says beside the submodules."""
        return (
            f"{super().extra_repr()}, proximal_weight={self.proximal_weight}, "
            f"implicit_gradient={self.implicit_gradient}, lagged={self.lagged}, every={self.every}"
        )


def _changes_in_place() -> bool:
    """Whether state is changed in its place, after a copy of what the backward pass needs: compilers and transforms want that."""
    return torch.compiler.is_compiling() or is_transformed()


def _checked_every(every: int | None, *, lagged: bool, default: int) -> int:
    if every is None:
        return default if lagged else 1
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be a whole number of steps, at least 1; got {every!r}.")
    if every > 1 and not lagged:
        raise ValueError(
            "every must be 1 unless the head is lagged: one that classifies with the batch's own means solves at every step; "
            f"got every={every}. Pass lagged=True."
        )
    return every
