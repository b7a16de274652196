"""Running means of the features: of each class, for the nearest-ETF problem, and of all samples, for the bias."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.operations import ClosedGradient, is_recorded
from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.heads.batch import Batch, flat_labels, num_processes, present_class_sums, wide
from guided_collapse.heads.checks import checked, is_soft
from guided_collapse.heads.state import SinglePrecisionState, snapshot, state_dtype

GLOBAL_MEAN_MOMENTUM = 0.1
TINY = 1e-30  # what numbers that may be zero are raised to before one divides by them


class RunningMean(SinglePrecisionState):
    """The running mean of all features: set by the first batch, then moved by a tenth, as BatchNorm does."""

    value: Tensor
    steps: Tensor

    def __init__(self, feature_dim: int, *, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(feature_dim, device=device, dtype=state_dtype(dtype)))
        self.register_buffer("steps", torch.zeros((), device=device, dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Forgets all batches."""
        self.value.zero_()
        self.steps.zero_()

    @torch.no_grad()
    def update(self, mean: Tensor, is_valid: Tensor | None = None) -> None:
        """Takes in the mean of one batch, (feature_dim,), unless `is_valid`, a boolean scalar, is false."""
        mean = mean.to(self.value.dtype)
        if is_valid is None:
            self.value.lerp_(mean, max(1 - int(self.steps), GLOBAL_MEAN_MOMENTUM))
            self.steps.add_(1)
            return
        # 1 for the first batch.
        share = (1 - self.steps).to(mean.dtype).clamp(min=GLOBAL_MEAN_MOMENTUM)
        # Not lerp_, which torch.func.vmap does not know with a tensor.
        self.value.copy_(torch.where(is_valid, torch.lerp(self.value, mean, share), self.value))
        self.steps.add_(is_valid)


class BatchMeans(NamedTuple):
    """What one training step learns about the means; both carry gradient to the batch's features."""

    centered_class_means: Tensor
    """The running class means with this batch in them, (num_classes, feature_dim)."""
    global_mean: Tensor
    """The mean of this batch alone, (feature_dim,)."""


class RunningClassMeans(SinglePrecisionState):
    """Exponential moving average of the centered class means, normalized to unit Frobenius norm (paper, section 3.5).

    Step t takes in the batch with the share a = max(2/(t+1), 1e-4):

        running <- a r/|r| + (1 - a) running,      r_c = mean of class c in the batch - global mean of the batch

    For a class that is absent from the batch, r_c is its running mean rescaled to the size of the others, so that it stays where it
    is. A class that was never seen sits at the global mean, and enters at full value when it is first seen. Soft labels y give the
    class means sum_i y_ic h_i / sum_i y_ic. With every class in every batch this is the paper's formula.

    Means are taken over the batches of all processes. The gradient is that of the new running means with respect to the batch.

    Args:
        feature_dim: d.
        num_classes: C, at least 2.
        check_values, device, dtype: as for `Head`.

    Example:
        >>> import torch
        >>> from guided_collapse import RunningClassMeans
        >>> means = RunningClassMeans(8, 3)
        >>> batch = means.update(torch.randn(4, 8), torch.tensor([0, 1, 0, 1]))
        >>> means.seen.tolist(), int(means.steps)
        ([True, True, False], 1)
    """

    running: Tensor
    """The class means up to the factor `factor`, (num_classes, feature_dim)."""
    factor: Tensor
    """What `running` has to be multiplied by, (1,): rescaling all absent classes touches no row."""
    squares: Tensor
    """The sum of squares of all class means, (1,)."""
    seen: Tensor
    """Which classes have been in a batch, (num_classes,)."""
    smallest_share: float = 1e-4
    """The lower limit of a batch's share."""

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
        # torch.compile turns float64 scalars on a CPU into Python numbers and loses writes to them; hence (1,).
        self.register_buffer("factor", torch.empty(1, device=device, dtype=dtype))
        self.register_buffer("squares", torch.empty(1, device=device, dtype=dtype))
        self.register_buffer("seen", torch.empty(num_classes, device=device, dtype=torch.bool))
        self.global_mean = RunningMean(feature_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forgets all batches."""
        for state in (self.running, self.squares, self.seen):
            state.zero_()
        self.factor.fill_(1)
        self.global_mean.reset_parameters()

    @property
    def steps(self) -> Tensor:
        """The number of batches so far, an integer scalar."""
        return self.global_mean.steps

    def update(self, features: Tensor, labels: Tensor) -> BatchMeans:
        """Takes in one batch and returns the class means with it, with gradient to the features.

        Features, (..., feature_dim), and labels are those of `Head.forward`, which also says what is refused.
        """
        features, is_clean = checked(features, labels, self)
        features = wide(features).flatten(0, -2)
        batch = Batch(features, flat_labels(labels, features), is_clean=is_clean)
        return BatchMeans(self.take_in(batch)[0], batch.mean(features))

    def value(self) -> Tensor:
        """The class means, (num_classes, feature_dim), without gradient; folds the common factor into the rows."""
        with torch.no_grad():
            self.running.mul_(self.factor)
            self.factor.fill_(1)
            self.squares.copy_(torch.linalg.vector_norm(self.running).square())
        return self.running

    def take_in(self, batch: Batch, *, only_state: bool = False) -> tuple[Tensor, Tensor | None]:
        """Takes in one checked batch; returns the class means with it, (num_classes, feature_dim), with gradient, and its validity.

        With `only_state` a batch of few classes touches only their rows, and the result is not all class means; call it without
        gradient, and ask `value()` for them.
        """
        global_mean, is_valid = batch.global_mean()
        # Centered, because sums of features far from zero would lose digits. The mean may be a constant: `_centered_means` takes
        # out whatever all samples have in common.
        if only_state and not is_soft(batch.labels) and len(batch.labels) * num_processes() < self.num_classes:
            sums, counts, classes = present_class_sums(batch, global_mean)
        else:
            sums, counts, classes = batch.class_sums(self.num_classes, global_mean), batch.class_counts(self.num_classes), None
        dtype = torch.promote_types(sums.dtype, self.running.dtype)
        stored, all_seen = (snapshot(state, only_compiled=True) for state in (self.running, self.seen))
        stored, seen = (stored, all_seen) if classes is None else (stored[classes], all_seen[classes])
        # Where values are known anyway, plain numbers are quicker than tensors.
        number: Any = float if is_valid is None else lambda value: snapshot(value, only_compiled=True).to(dtype)

        present = counts > 0
        is_present = present.to(dtype)[:, None]
        averaging = {
            "inverse_counts": is_present / counts.clamp(min=TINY)[:, None],
            "is_present": is_present,
            "num_samples": _at_least(number(counts.sum()), TINY),
        }
        means = _centered_means(sums.detach(), **averaging)
        norm = _at_least(number(torch.linalg.vector_norm(means)), TINY)
        # Features that are all the same leave rounding errors.
        noise = 4 * torch.finfo(sums.dtype).eps * math.sqrt(self.num_classes) * number(torch.linalg.vector_norm(global_mean))
        is_real = norm > noise

        # With u the means of present classes at unit norm, r/|r| = shrink (u, rescale absent): all classes in the same size.
        num_seen, num_present, squares, factor = (
            number(value) for value in (all_seen.sum(), present.sum(), self.squares, self.factor)
        )
        has_all = is_valid is None and num_seen == num_present == self.num_classes
        own_squares = (
            squares if has_all else number(torch.linalg.vector_norm(stored, dim=1).square() @ is_present[:, 0]) * factor**2
        )
        absent_squares = _at_least(squares - own_squares, 0.0)
        squared_rescale = num_seen / _at_least(num_present * squares, TINY)
        shrink = is_real * (1 + squared_rescale * absent_squares) ** -0.5
        share = _at_least(2 / (number(self.steps) + 2), self.smallest_share)
        kept = share * shrink * squared_rescale**0.5 + (1 - share)

        # A new class enters at full value; its row was zero.
        from_before = (1 - share) * factor if has_all else (is_present * (1 - share - kept) + kept) * factor
        from_batch = share * shrink if has_all else ((~seen).to(dtype) * (1 - share) + share)[:, None] * shrink
        updated = _blended(sums, means=means, norm=norm, before=stored * from_before, from_batch=from_batch, **averaging)

        with torch.no_grad():
            if classes is None:
                self.running.copy_(updated if is_valid is None else torch.where(is_valid, updated, stored * factor))
                self.factor.fill_(1)
                self.squares.copy_(torch.linalg.vector_norm(self.running).square())
                self.seen.logical_or_(present if is_valid is None else present & is_valid)
            else:
                # All other classes are multiplied by `kept`.
                updated = updated * is_present
                new_squares = kept**2 * absent_squares + updated.square().sum()
                new_factor = torch.as_tensor(factor * kept, dtype=dtype, device=updated.device)
                new_factor = torch.where(new_factor > 0, new_factor, 1.0)
                change = is_present * (updated / new_factor - stored)
                if is_valid is not None:
                    new_squares, new_factor = torch.where(is_valid, new_squares, squares), torch.where(is_valid, new_factor, factor)
                    change = torch.where(is_valid, change, 0.0)
                self.squares.copy_(new_squares)
                self.factor.copy_(new_factor)
                self.running.index_add_(0, classes, change.to(self.running.dtype))
                # Rows that count nothing repeat the first class, which is present in every valid batch.
                self.seen.index_copy_(0, classes, seen | (True if is_valid is None else is_valid))
            self.global_mean.update(global_mean, is_valid)
        return updated.to(sums.dtype), is_valid


def _at_least(value: Any, least: float) -> Any:
    return value.clamp(min=least) if isinstance(value, Tensor) else max(value, least)


def _centered_means(sums: Tensor, *, inverse_counts: Tensor, is_present: Tensor, num_samples: float | Tensor) -> Tensor:
    """The means of present classes minus that of all samples, which rounding leaves a little of; zero for absent classes."""
    return torch.addcmul(sums * inverse_counts, is_present, sums.sum(dim=0) / num_samples, value=-1)


def _blend(
    sums: Tensor, *, means: Tensor, norm: float | Tensor, before: Tensor, from_batch: float | Tensor, **averaging: Any
) -> tuple[Tensor, Tensor]:
    if is_recorded(sums):
        means = _centered_means(sums, **averaging)
        norm = torch.linalg.vector_norm(means).clamp(min=TINY)
    factors = torch.as_tensor(from_batch / norm, dtype=before.dtype, device=before.device)
    return torch.addcmul(before, means, factors), factors


def _blend_backward(
    grad: Tensor,
    needed: list[Tensor],
    sums: Tensor,
    *,
    means: Tensor,
    norm: float | Tensor,
    inverse_counts: Tensor,
    is_present: Tensor,
    num_samples: float | Tensor,
    **_: object,
) -> tuple[Tensor]:
    scaled = grad * needed[0]
    along = (scaled * means).sum() / norm**2
    grad_means = torch.addcmul(scaled, means, along, value=-1)
    grad_mean = (is_present * grad_means).sum(dim=0) / num_samples
    return ((grad_means * inverse_counts - grad_mean).to(sums.dtype),)


_blended = ClosedGradient(_blend, _blend_backward)
"""before + from_batch r/|r| of the means r of sums, (num_classes, feature_dim); `means` and `norm` are r and |r| as constants."""
