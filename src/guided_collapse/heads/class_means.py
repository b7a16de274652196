"""Running means of the features: class means, for the nearest-ETF problem, and the mean of all samples, for the bias."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.operations import ClosedGradient, is_recorded
from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.heads.batch import TINY, Batch, PresentClasses, flat_labels, num_processes, present_class_means, wide
from guided_collapse.heads.checks import checked, is_soft
from guided_collapse.heads.state import SinglePrecisionState, snapshot, state_dtype

GLOBAL_MEAN_MOMENTUM = 0.1


class RunningMean(SinglePrecisionState):
    """The running mean of all features: the first batch sets it, and later batches update it with momentum 0.1, as in BatchNorm."""

    value: Tensor
    steps: Tensor

    def __init__(self, feature_dim: int, *, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(feature_dim, device=device, dtype=state_dtype(dtype)))
        self.register_buffer("steps", torch.zeros((), device=device, dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Resets the mean to zero and the step count to 0."""
        self.value.zero_()
        self.steps.zero_()

    @torch.no_grad()
    def update(self, mean: Tensor, is_valid: Tensor | None = None) -> None:
        """Updates the running mean with the mean of one batch, (feature_dim,), unless the boolean scalar `is_valid` is False."""
        mean = mean.to(self.value.dtype)
        if is_valid is None:
            self.value.lerp_(mean, max(1 - int(self.steps), GLOBAL_MEAN_MOMENTUM))
            self.steps.add_(1)
            return
        # The share is 1 for the first batch.
        share = (1 - self.steps).to(mean.dtype).clamp(min=GLOBAL_MEAN_MOMENTUM)
        # Not lerp_, which torch.func.vmap does not support with a tensor weight.
        self.value.copy_(torch.where(is_valid, torch.lerp(self.value, mean, share), self.value))
        self.steps.add_(is_valid)


class BatchMeans(NamedTuple):
    """The result of `RunningClassMeans.update`: means that are differentiable in the features of the batch."""

    centered_class_means: Tensor
    """The updated running class means, (num_classes, feature_dim)."""
    global_mean: Tensor
    """The mean of this batch alone, (feature_dim,)."""


class RunningClassMeans(SinglePrecisionState):
    r"""Exponential moving average of the centered class means, normalized to unit Frobenius norm (paper, section 3.5).

    Batch $t$ updates the means $\tilde H$, (num_classes, feature_dim), with weight $a_t$:

    $$
    \tilde H \leftarrow (1 - a_t) \, \tilde H + a_t \, \frac{R}{\lVert R \rVert_F}, \qquad
    a_t = \max\left(\tfrac{2}{t+1}, 10^{-4}\right),
    $$

    where row $c$ of $R$ is the mean of class $c$ in the batch minus the mean of the batch. This is the paper's formula if every
    batch contains every class. Otherwise, the rows of absent classes are their running means, rescaled to the size of the
    other rows, so that absent classes stay where they are. Classes that were never seen have zero rows, and enter at full value
    with their first batch.

    Soft labels $y$ give the class means $\sum_i y_{ic} h_i / \sum_i y_{ic}$. In distributed training, means are over the batches of
    all processes.

    Args:
        feature_dim: d, at least 1.
        num_classes: C, at least 2.
        check_values, device, dtype: as for `Head`.

    Example:
        >>> import torch
        >>> from guided_collapse import RunningClassMeans
        >>> means = RunningClassMeans(8, 3)
        >>> batch = means.update(torch.randn(4, 8), torch.tensor([0, 1, 0, 1]))
        >>> batch.centered_class_means.shape
        torch.Size([3, 8])
        >>> means.seen.tolist(), int(means.steps)
        ([True, True, False], 1)
    """

    running: Tensor
    """The class means divided by `factor`, (num_classes, feature_dim)."""
    factor: Tensor
    """The common factor of the rows of `running`, (1,), which rescales all absent classes without touching their rows."""
    row_squares: Tensor
    """Squared norms of the class means, (num_classes,)."""
    seen: Tensor
    """Whether each class has been in a batch, (num_classes,)."""
    smallest_share: float = 1e-4
    """The minimum weight of a batch in the running means."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        check_values: bool | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        self.feature_dim, self.num_classes = int(feature_dim), int(num_classes)
        self.check_values = check_values
        dtype = state_dtype(dtype)
        self.register_buffer("running", torch.empty(num_classes, feature_dim, device=device, dtype=dtype))
        # Of shape (1,), because torch.compile turns float64 scalars on a CPU into Python numbers and loses writes to them.
        self.register_buffer("factor", torch.empty(1, device=device, dtype=dtype))
        self.register_buffer("row_squares", torch.empty(num_classes, device=device, dtype=dtype))
        self.register_buffer("seen", torch.empty(num_classes, device=device, dtype=torch.bool))
        self.global_mean = RunningMean(feature_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets the class means to zero, as before the first batch."""
        for state in (self.running, self.row_squares, self.seen):
            state.zero_()
        self.factor.fill_(1)
        self.global_mean.reset_parameters()

    @property
    def steps(self) -> Tensor:
        """Number of batches so far, an integer scalar."""
        return self.global_mean.steps

    def update(self, features: Tensor, labels: Tensor) -> BatchMeans:
        """Updates the means with one batch and returns them, differentiable in the features of the batch.

        Args:
            features: (num_samples, feature_dim) or (..., feature_dim).
            labels: as for `Head.forward`.

        Raises:
            TypeError, ValueError: as for `Head.forward`.
        """
        features, is_clean = checked(features, labels, self)
        features = wide(features).flatten(0, -2)
        batch = Batch(features, flat_labels(labels, features), is_clean=is_clean)
        class_means, _ = self.add_batch(batch)
        assert class_means is not None
        return BatchMeans(class_means, batch.mean(features))

    def value(self) -> Tensor:
        """Returns the class means, (num_classes, feature_dim), without gradient. Multiplies `running` by `factor`, in place."""
        with torch.no_grad():
            self.running.mul_(self.factor)
            self.factor.fill_(1)
        return self.running

    def add_batch(self, batch: Batch, *, only_state: bool = False) -> tuple[Tensor | None, Tensor | None]:
        """Updates the means with a batch that has been checked, and returns them.

        With `only_state`, which requires disabled gradients, a batch with class indices and fewer samples than num_classes
        touches only the rows of its classes.

        Returns:
            The class means, (num_classes, feature_dim), with gradient, or None if only some rows were touched (see `value()`);
            and whether the batch is valid, a boolean scalar, or None if it is known to be valid.
        """
        global_mean, is_valid = batch.global_mean()
        counts = batch.class_counts(self.num_classes)
        few = None
        if only_state and not is_soft(batch.labels) and len(batch.labels) * num_processes() < self.num_classes:
            few = present_class_means(batch, counts, global_mean)
            means = few.means
        else:
            if is_valid is not None or float(self.factor) != 1:
                self.value()
            means = batch.class_means(batch.features.detach(), counts, global_mean)
        state = self.running, self.row_squares, self.seen, self.steps
        stored, row_squares, seen, steps = (snapshot(tensor, only_compiled=True) for tensor in state)
        dtype = torch.promote_types(means.dtype, stored.dtype)
        # Python numbers are faster than tensors if values are read anyway.
        number: Any = float if is_valid is None else lambda value: value

        norm = number(torch.linalg.vector_norm(means))
        # If all features are equal, only rounding errors remain, which carry no information about classes.
        size = batch.scale or number(torch.linalg.vector_norm(global_mean))
        is_real = norm > 4 * torch.finfo(means.dtype).eps * math.sqrt(self.num_classes) * size
        share = _at_least(2 / (number(steps.to(dtype)) + 2), self.smallest_share)
        before, from_batch = 1 - share, share
        has_all = is_valid is None and bool(is_real) and float(counts.min()) > 0 and bool(seen.all())
        if not has_all:
            present = (counts > 0) & is_real
            # R/|R| = shrink (u, rescale v), where u are the batch's means of present classes at unit norm, and v the running means
            # of absent classes.
            num_seen, num_present = number(seen.sum(dtype=dtype)), number(present.sum(dtype=dtype))
            squares, absent_squares = number(row_squares.sum()), number(row_squares.masked_fill(present, 0).sum())
            squared_rescale = num_seen / _at_least(num_present * squares, TINY)
            shrink = (1 + squared_rescale * absent_squares) ** -0.5
            kept = share * shrink * squared_rescale**0.5 + before
            before = torch.where(present, _scalar(before, means, dtype), _scalar(kept, means, dtype))[:, None]
            # A new class, whose row is zero, enters at full value.
            from_batch = torch.where(seen, _scalar(share * shrink, means, dtype), _scalar(shrink, means, dtype))[:, None]
        norm = norm.masked_fill(~is_real, math.inf) if isinstance(is_real, Tensor) else norm if is_real else math.inf
        if few is None:
            parts: Any = {"means": means, "norm": norm, "before": stored * before, "from_batch": from_batch}
            updated = _updated(batch.features, batch=batch.constant(), counts=counts, global_mean=global_mean, **parts)
        with torch.no_grad():
            if few is None:
                self.running.copy_(_choose(is_real, updated, stored))
                self.row_squares.copy_(torch.linalg.vector_norm(self.running, dim=1).square())
            else:
                self._update_rows(
                    few, stored, present, before=1 - share, from_batch=from_batch / norm, kept=_choose(is_real, kept, 1.0)
                )
            if not has_all:
                self.seen.logical_or_(present)
            self.global_mean.update(global_mean / (batch.scale or 1), is_valid)
        return updated.to(means.dtype) if few is None else None, is_valid

    def _update_rows(
        self, few: PresentClasses, stored: Tensor, present: Tensor, *, before: Any, from_batch: Tensor, kept: Any
    ) -> None:
        """Updates the rows of the classes in `few`, and multiplies all other rows by `kept` through `factor`."""
        rows = stored[few.classes]
        updated = torch.addcmul(rows * (self.factor * before), few.means, from_batch[few.classes])
        factor = _scalar(self.factor * kept, rows, rows.dtype)
        factor = torch.where(factor > 0, factor, 1.0)
        change = torch.where((few.is_first & present[few.classes])[:, None], updated / factor - rows, 0.0)
        self.running.index_add_(0, few.classes, change.to(stored.dtype))
        self.factor.copy_(factor)
        norms = torch.linalg.vector_norm(self.running[few.classes], dim=1) * self.factor
        self.row_squares.mul_(kept**2).index_copy_(0, few.classes, norms.square())


def _at_least(value: Any, least: float) -> Any:
    return value.clamp(min=least) if isinstance(value, Tensor) else max(value, least)


def _choose(condition: Any, value: Any, otherwise: Any) -> Any:
    """Returns `value` if the condition, a bool or a boolean scalar tensor, holds; otherwise returns `otherwise`."""
    if isinstance(condition, Tensor):
        return torch.where(condition, value, otherwise)
    return value if condition else otherwise


def _scalar(value: Any, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(value, dtype=dtype, device=like.device)


def _update(
    features: Tensor,
    *,
    batch: Batch,
    counts: Tensor,
    global_mean: Tensor,
    means: Tensor,
    norm: float | Tensor,
    before: Tensor,
    from_batch: float | Tensor,
) -> tuple[Tensor, Tensor]:
    if is_recorded(features):
        means = batch.class_means(features, counts, global_mean)
        norm = torch.where(_scalar(norm, means, means.dtype) < math.inf, torch.linalg.vector_norm(means).clamp(min=TINY), math.inf)
    factors = _scalar(from_batch / norm, means, before.dtype)
    return torch.addcmul(before, means, factors), factors


def _update_backward(
    grad: Tensor,
    needed: list[Tensor],
    features: Tensor,
    *,
    batch: Batch,
    counts: Tensor,
    means: Tensor,
    norm: float | Tensor,
    **_: object,
) -> tuple[Tensor]:
    scaled = grad * needed[0]
    along = (scaled * means).sum() / norm**2
    return (batch.class_means_backward(torch.addcmul(scaled, means, along, value=-1).to(means.dtype), counts),)


_updated = ClosedGradient(_update, _update_backward)
"""Returns before + from_batch R/|R|, (num_classes, feature_dim), differentiable in the features of a batch with class means R.

`means` and `norm` are R and |R| as constants; with an infinite norm, the batch does not contribute.
"""
