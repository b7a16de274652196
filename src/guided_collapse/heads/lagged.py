"""Frames that follow class means a step behind: when they move, and batches whose labels come after the forward pass."""

import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import NearestFrame, Solver, checked_solver, nearest_etf
from guided_collapse.geometry.operations import is_transformed, operation, without_autocast
from guided_collapse.geometry.simplex import Direction, frame_weight, has_simplex_etf
from guided_collapse.geometry.tight import default_every
from guided_collapse.heads.batch import Batch, flat_labels
from guided_collapse.heads.checks import checked, checks_values
from guided_collapse.heads.class_means import RunningClassMeans, RunningMean
from guided_collapse.heads.head import FrameHead, Options
from guided_collapse.heads.state import snapshot


class LaggedFrameHead(FrameHead):
    """What `NearestETFHead` needs in order to be lagged; see there for the arguments."""

    class_means: RunningClassMeans
    proximal_weight: float
    solver: Solver | None
    _solve: Callable[[Tensor], NearestFrame]
    """The frame nearest to the class means, pulled toward the present one."""
    _keep: Callable[[NearestFrame, Tensor | None], None]
    """Makes a solution the state of the head unless the batch, by a boolean scalar, is invalid."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        direction: Direction,
        lagged: bool | None,
        every: int | None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(feature_dim, num_classes, center=False, direction=direction, **options)
        self.lagged = not self.is_simplex if lagged is None else lagged
        self.needs_labels = not self.lagged
        self.every = _checked_every(every, lagged=self.lagged, default=default_every(feature_dim, num_classes))
        # The number of batches so far, as far as it is known without synchronizing with the device.
        self._known_steps: int | None = 0
        self._waiting: Tensor | None = None

    @property
    def running_mean(self) -> RunningMean:
        """The running global mean f_G."""
        return self.class_means.global_mean

    @property
    def basis(self) -> Tensor:
        """U, (feature_dim, num_classes), of the last solve."""
        raise NotImplementedError

    @torch.no_grad()
    def _follow(self, batch: Batch) -> None:
        """Updates the class means with a batch and, if it is due, the frame."""
        means = self.class_means
        class_means, is_valid = means.take_in(batch, only_state=True)
        if torch.compiler.is_compiling() and not (self.is_simplex and self.every == 1):
            self._known_steps = None
            solver = checked_solver(self.solver, self.frame.device)
            state = means.value(), snapshot(self.basis.T), snapshot(means.seen), means.steps
            basis = _basis_when_due(*state, self.every, self.proximal_weight, solver).T
            weight = frame_weight(basis) if self.is_simplex else math.sqrt(self.num_classes / self.feature_dim) * basis.T
            self._keep(NearestFrame(basis, weight, means.running, None), is_valid)
        elif torch.compiler.is_compiling() or (self._count_step() - 1) % self.every == 0:
            self._keep(self._solve(means.value() if class_means is None else class_means), is_valid)

    def _count_step(self) -> int:
        """The number of batches so far. Where values are checked anyway, the state itself is asked; elsewhere it is asked once."""
        steps = self.class_means.steps
        if self._known_steps is None or (checks_values(self.check_values, steps.device) and not is_transformed()):
            self._known_steps = int(steps)
        else:
            self._known_steps += 1
        return self._known_steps

    def update(self, labels: Tensor) -> None:
        """Takes in the batch that the last forward pass in training mode classified without labels.

        For a lagged head, `logits = model(inputs)`, the loss, and then `head.update(labels)` does what passing the labels to the
        forward pass does, except that ignored samples (-100) have already taken part in the centering. A forward pass without
        labels under `torch.no_grad()` leaves no batch to take in.

        Args:
            labels: as for `forward`.

        Raises:
            RuntimeError: for a head that is not lagged, or if no batch waits.
            TypeError, ValueError: for labels that do not fit; the state is then unchanged and the batch still waits.
        """
        if not self.lagged:
            super().update(labels)
        features = self._waiting
        if features is None:
            raise RuntimeError(
                "head.update(labels) must follow a forward pass in training mode, with gradients and without labels; no batch is "
                "waiting. Call model(inputs) first, once for each update; a batch that came with labels is already taken in."
            )
        if isinstance(labels, Tensor) and labels.ndim > 1:
            labels = flat_labels(labels, features)
        features, is_clean = checked(features, labels, self)
        with without_autocast(features.device):
            self._follow(Batch(features, flat_labels(labels, features), scale=self.scale, is_clean=is_clean))
        self._waiting = None

    def forget(self) -> None:
        """Drops the batch that waits for its labels, if there is one."""
        self._waiting = None

    def _wait_for_labels(self, batch: Batch) -> None:
        """Keeps a batch that came without labels for `update`, unless nobody will train on it."""
        if torch.is_grad_enabled():
            self._waiting = batch.features.detach()

    def _check_nothing_waits(self, batch: Batch) -> None:
        if self._waiting is not None and (len(batch.labels) > 0 or torch.is_grad_enabled()):
            raise RuntimeError(
                "a lagged head must take in every training batch before the next one; got a forward pass while the labels of the "
                f"previous batch, {len(self._waiting)} samples, are missing. Call head.update(labels) after each forward pass in "
                "training mode, or head.forget() to drop a batch; under torch.no_grad() no batch waits."
            )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Forgets all batches."""
        self.class_means.reset_parameters()
        self._known_steps = 0
        self._waiting = None

    def _load_from_state_dict(self, *args: Any) -> None:
        self._known_steps = None
        self._waiting = None
        super()._load_from_state_dict(*args)


def _checked_every(every: int | None, *, lagged: bool, default: int) -> int:
    if every is None:
        return default if lagged else 1
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"every must be a whole number of steps; got {every!r}.")
    if every < 1:
        raise ValueError(f"every must be at least 1; got {every}.")
    if every > 1 and not lagged:
        raise ValueError(
            "every must be 1 unless the head is lagged: one that classifies with the batch's own means solves at every step; "
            f"got every={every}. Pass lagged=True."
        )
    return every


# An operation, because a compiled graph cannot branch on the number of steps. It reads that number from the device.
@operation("basis_when_due")
def _basis_when_due(
    class_means: Tensor, rows: Tensor, seen: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str
) -> Tensor:
    """U', (num_classes, feature_dim), of a new solve at steps 1, 1 + every, 1 + 2 every, ..., and `rows` itself at others."""
    step = int(steps)
    if (step - 1) % every:
        return rows.clone(memory_format=torch.contiguous_format)
    options: Any = {"proximal_weight": proximal_weight, "solver": solver, "first_step": step == 1}
    if has_simplex_etf(rows.shape[1], rows.shape[0]):
        basis = nearest_etf(class_means, rows.T, **options).basis
    else:
        from guided_collapse.heads.nearest_tight import solve_lagged

        basis = solve_lagged(class_means, rows.T, seen, **options).basis
    return basis.T.to(rows.dtype, memory_format=torch.contiguous_format)


@_basis_when_due.register_fake
def _(class_means: Tensor, rows: Tensor, seen: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str) -> Tensor:
    return torch.empty_like(rows, memory_format=torch.contiguous_format)
