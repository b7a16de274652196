"""Lagged heads, which classify before they update their frame, and can receive labels after the forward pass."""

import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import NearestFrame, Solver, checked_solver, nearest_etf
from guided_collapse.geometry.operations import is_transformed, operation, without_autocast
from guided_collapse.geometry.products import vanishing_pull
from guided_collapse.geometry.simplex import Direction, check_integer, frame_weight, has_simplex_etf
from guided_collapse.geometry.tight import default_every, nearest_frame, rounds_in_training
from guided_collapse.heads.batch import Batch, flat_labels
from guided_collapse.heads.checks import checked, checks_values
from guided_collapse.heads.class_means import RunningClassMeans, RunningMean
from guided_collapse.heads.head import FrameHead, Options
from guided_collapse.heads.state import snapshot


class LaggedFrameHead(FrameHead):
    """The lagged mode of `NearestETFHead`, which documents the arguments."""

    class_means: RunningClassMeans
    proximal_weight: float
    solver: Solver | None
    _solve: Callable[[Tensor], NearestFrame]
    """Returns the frame nearest to the class means, with the current frame as proximal point."""
    _store: Callable[[NearestFrame, Tensor | None], None]
    """Stores a solution as the state of the head, unless a boolean scalar marks the batch as invalid."""

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
        # The number of batches so far, or None if it must be read from the state.
        self._known_steps: int | None = 0
        self._pending: Tensor | None = None

    @property
    def running_mean(self) -> RunningMean:
        """The running mean u_G of the directions h/|h|."""
        return self.class_means.global_mean

    @property
    def basis(self) -> Tensor:
        """U, (feature_dim, num_classes), of the last solve."""
        raise NotImplementedError

    @torch.no_grad()
    def _update_frame(self, batch: Batch) -> None:
        """Updates the class means with a batch and, every `every` steps, the frame."""
        means = self.class_means
        class_means, is_valid = means.add_batch(batch, only_state=True)
        if torch.compiler.is_compiling() and not (self.is_simplex and self.every == 1):
            self._known_steps = None
            solver = checked_solver(self.solver, self.frame.device)
            state = means.value(), snapshot(self.basis.T), snapshot(means.seen), means.steps
            basis = _basis_when_due(*state, self.every, self.proximal_weight, solver).T
            weight = frame_weight(basis) if self.is_simplex else math.sqrt(self.num_classes / self.feature_dim) * basis.T
            self._store(NearestFrame(basis, weight, means.running, None), is_valid)
        elif torch.compiler.is_compiling() or (self._count_step() - 1) % self.every == 0:
            self._store(self._solve(means.value() if class_means is None else class_means), is_valid)

    def _count_step(self) -> int:
        """Returns the number of batches so far, including the current one.

        If values are checked anyway, the number is read from the state. Otherwise, it is read at most once and then counted.
        """
        steps = self.class_means.steps
        if self._known_steps is None or (checks_values(self.check_values, steps.device) and not is_transformed()):
            self._known_steps = int(steps)
        else:
            self._known_steps += 1
        return self._known_steps

    def update(self, labels: Tensor) -> None:
        """Updates a lagged head with the labels of the batch that its last forward pass classified without labels.

        Calling `model(inputs)`, computing the loss and then calling `head.update(labels)` is equivalent to passing the labels to
        the forward pass, except that ignored samples (-100) have already taken part in the centering. Forward passes under
        `torch.no_grad()` leave nothing to update.

        Args:
            labels: as for `forward`.

        Raises:
            RuntimeError: if the head is not lagged, or no batch is pending.
            TypeError, ValueError: for invalid labels; the state is then unchanged and the batch still pending.
        """
        if not self.lagged:
            super().update(labels)
        features = self._pending
        if features is None:
            raise RuntimeError(
                "head.update(labels) must follow a forward pass in training mode, with gradients enabled and without labels; no "
                "batch is pending. Call model(inputs) first, once per update; batches that came with labels need no update."
            )
        if isinstance(labels, Tensor) and labels.ndim > 1:
            labels = flat_labels(labels, features)
        features, is_clean = checked(features, labels, self)
        with without_autocast(features.device):
            self._update_frame(Batch(features, flat_labels(labels, features), scale=self.scale, is_clean=is_clean))
        self._pending = None

    def forget(self) -> None:
        """Drops the batch whose labels are pending, if there is one."""
        self._pending = None

    def _keep_pending(self, batch: Batch) -> None:
        """Keeps the features of a batch that came without labels, for `update` to use, unless gradients are disabled."""
        if torch.is_grad_enabled():
            self._pending = batch.features.detach()

    def _check_nothing_pending(self, batch: Batch) -> None:
        if self._pending is not None and (len(batch.labels) > 0 or torch.is_grad_enabled()):
            raise RuntimeError(
                "a lagged head needs the labels of every training batch before the next one; got a forward pass while those of the "
                f"previous batch, {len(self._pending)} samples, are pending. Pass labels to the forward pass, or call "
                "head.update(labels) after it; head.forget() drops the batch. Forward passes under torch.no_grad() need no labels."
            )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Resets the class means and drops a pending batch."""
        self.class_means.reset_parameters()
        self._known_steps = 0
        self._pending = None

    def _load_from_state_dict(self, *args: Any) -> None:
        self._known_steps = None
        self._pending = None
        super()._load_from_state_dict(*args)


def _checked_every(every: int | None, *, lagged: bool, default: int) -> int:
    if every is None:
        return default if lagged else 1
    check_integer("every", every, at_least=1)
    if every > 1 and not lagged:
        raise ValueError(
            "every must be 1 unless the head is lagged, because other heads solve at every step; "
            f"got every={every}. Pass lagged=True."
        )
    return int(every)


def nearest_tight_frame(
    class_means: Tensor, basis: Tensor, seen: Tensor, *, first_step: bool | Tensor = False, **options: Any
) -> NearestFrame:
    """Returns the tight frame nearest to the class means, with the few rounds toward unit rows that a training step can afford.

    `seen`, (num_classes,), marks the classes that have had samples. For every other class, its row of the current frame, scaled to
    the size of the class means, takes the place of its mean, because means of zero would pull the rows of these classes together.
    The other arguments are those of `nearest_frame`.
    """
    feature_dim, num_classes = basis.shape
    size = torch.linalg.vector_norm(class_means) / seen.sum(dtype=class_means.dtype).clamp(min=1).sqrt()
    frame = (math.sqrt(num_classes / feature_dim) * basis.T).to(class_means.dtype)
    means = torch.where(seen[:, None], class_means, size * frame)
    return nearest_frame(means, basis, rounds=rounds_in_training(feature_dim, num_classes), first_step=first_step, **options)


def nearest_tight_frame_lagged(
    class_means: Tensor, basis: Tensor, seen: Tensor, *, proximal_weight: float, solver: Solver | None, first_step: bool
) -> NearestFrame:
    """Returns the result of `nearest_tight_frame` for a lagged head.

    On the first step, a vanishing proximal weight replaces the separate solve without a proximal term.
    """
    vanishing = vanishing_pull(basis.shape[0] + 1, proximal_weight)
    pull = vanishing if first_step else max(proximal_weight, vanishing)
    return nearest_tight_frame(class_means, basis, seen, proximal_weight=pull, solver=solver)


# A custom operation, because a compiled graph cannot branch on the number of steps. Reading that number synchronizes with the
# device.
@operation("basis_when_due")
def _basis_when_due(
    class_means: Tensor, rows: Tensor, seen: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str
) -> Tensor:
    """Returns U', (num_classes, feature_dim): a new solution at steps 1, 1 + every, 1 + 2 every, ...; otherwise, `rows`."""
    step = int(steps)
    if (step - 1) % every:
        return rows.clone(memory_format=torch.contiguous_format)
    options: Any = {"proximal_weight": proximal_weight, "solver": solver, "first_step": step == 1}
    if has_simplex_etf(rows.shape[1], rows.shape[0]):
        basis = nearest_etf(class_means, rows.T, **options).basis
    else:
        basis = nearest_tight_frame_lagged(class_means, rows.T, seen, **options).basis
    return basis.T.to(rows.dtype, memory_format=torch.contiguous_format)


@_basis_when_due.register_fake
def _(class_means: Tensor, rows: Tensor, seen: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str) -> Tensor:
    return torch.empty_like(rows, memory_format=torch.contiguous_format)
