"""Running means of the features: of each class, for the nearest-ETF problem, and of all samples, for the bias."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.heads.batch import (
    Batch,
    center_batch,
    checked,
    flat_labels,
    is_soft,
    num_processes,
    sums_of_all_classes,
    sums_of_present_classes,
)
from guided_collapse.heads.state import SinglePrecisionState, snapshot, state_dtype

GLOBAL_MEAN_MOMENTUM = 0.1


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
    def update(self, mean: Tensor, is_valid: Tensor) -> None:
        """Takes in the mean of one batch, (feature_dim,), unless `is_valid`, a boolean scalar, is false."""
        mean = mean.to(torch.promote_types(mean.dtype, self.value.dtype))
        moved = torch.where(self.steps == 0, mean, torch.lerp(self.value.to(mean.dtype), mean, GLOBAL_MEAN_MOMENTUM))
        self.value.copy_(torch.where(is_valid, moved, self.value))
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

    Means are taken over the batches of all processes. Gradients treat the rescaling of absent classes as constant.

    Args:
        feature_dim: d.
        num_classes: C, at least 2.
        check_values: as for `Head`.
        device: where the state lives.
        dtype: of the state, at least float32.

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
    num_seen: Tensor
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
        self.register_buffer("num_seen", torch.empty((), device=device, dtype=torch.int64))
        self.global_mean = RunningMean(feature_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forgets all batches."""
        for state in (self.running, self.squares, self.seen, self.num_seen):
            state.zero_()
        self.factor.fill_(1)
        self.global_mean.reset_parameters()

    @property
    def steps(self) -> Tensor:
        """The number of batches so far, an integer scalar."""
        return self.global_mean.steps

    def update(self, features: Tensor, labels: Tensor) -> BatchMeans:
        """Takes in one batch and returns the class means with it, with gradient to the features.

        Args:
            features: (..., feature_dim), finite.
            labels: (...), class indices, or (..., num_classes), soft, as for `Head.forward`.

        Raises:
            TypeError, ValueError: for a batch that does not fit; the state is then unchanged.
        """
        features = checked(features, labels, self)
        features = features.flatten(0, -2).to(torch.promote_types(features.dtype, torch.float32))
        batch = center_batch(features, flat_labels(labels, features), check_values=self.check_values)
        return BatchMeans(self.take_in(batch), batch.global_mean)

    @torch.no_grad()
    def take_in_present(self, batch: Batch) -> None:
        """The same without gradient and result. Only the rows of the batch's classes are touched if they are fewer than all."""
        few = not is_soft(batch.labels) and len(batch.labels) * num_processes() < self.num_classes
        self.take_in(batch, only_present=few)

    def value(self) -> Tensor:
        """The class means, (num_classes, feature_dim), without gradient; folds the common factor into the rows."""
        with torch.no_grad():
            self.running.mul_(self.factor)
            self.factor.fill_(1)
            self.squares.copy_(torch.linalg.vector_norm(self.running).square())
        return self.running

    def take_in(self, batch: Batch, *, only_present: bool = False) -> Tensor:
        """Takes in one checked batch and returns the class means with it, (num_classes, feature_dim), with gradient.

        With `only_present`, only the rows of the batch's classes are touched, and the result has one row for each sample.
        """
        sums, counts, classes = sums_of_present_classes(batch) if only_present else sums_of_all_classes(batch, self.num_classes)
        stored, seen = (self.running, self.seen) if classes is None else (self.running[classes], self.seen[classes])
        dtype = torch.promote_types(sums.dtype, stored.dtype)
        stored, seen = snapshot(stored).to(dtype), snapshot(seen).to(torch.bool)
        before, step = stored * snapshot(self.factor), snapshot(self.steps) + 1

        total = counts.sum()
        is_valid = batch.is_valid & (total > 0)
        present = (counts > 0) & is_valid
        # Rounding leaves a little of the global mean in features that are far from zero.
        residue = sums.sum(dim=0) / torch.where(is_valid, total, 1.0)
        means = torch.where(present[:, None], sums / torch.where(present, counts, 1.0)[:, None] - residue, 0.0)
        means = _without_rounding_errors(means, batch.global_mean.detach(), self.num_classes).to(dtype)

        # r = (means of present classes, running means of absent ones in the same size).
        absent_squares = (self.squares - torch.where(present[:, None] & seen[:, None], before, 0.0).square().sum()).clamp(min=0)
        squares = means.square().sum()
        size = (squares.detach() / present.sum().clamp(min=1)).sqrt()
        known_size = (self.squares / self.num_seen.clamp(min=1)).sqrt()
        rescale = size / torch.where(known_size > 0, known_size, 1.0)
        squared_norm = squares + rescale.square() * absent_squares
        inverse_norm = torch.where(squared_norm > 0, torch.where(squared_norm > 0, squared_norm, 1.0).rsqrt(), 0.0)
        in_batch = torch.where(present[:, None], means, rescale * before) * inverse_norm

        share = torch.where(is_valid, (2.0 / (step + 1).to(dtype)).clamp(min=self.smallest_share), 0.0)
        previous = torch.where((present & ~seen)[:, None], in_batch.detach(), before)
        updated = share * in_batch + (1 - share) * previous

        with torch.no_grad():
            if classes is None:
                self.running.copy_(updated)
                self.factor.fill_(1)
                self.squares.copy_(torch.linalg.vector_norm(self.running).square())
                self.seen.logical_or_(present)
                self.num_seen.copy_(self.seen.sum())
            else:
                # All other classes are multiplied by `moved`.
                moved = share * rescale * inverse_norm + (1 - share)
                factor = torch.where(moved > 0, self.factor * moved, 1.0)
                updated = torch.where(present[:, None], updated, 0.0)
                self.squares.copy_(moved.square() * absent_squares + updated.square().sum())
                change = torch.where(present[:, None], updated / factor - stored, 0.0)
                self.running.index_add_(0, classes, change.to(self.running.dtype))
                self.factor.copy_(factor)
                self.num_seen.add_((present & ~seen).sum())
                # Rows that count nothing repeat the first class, which is present in every valid batch.
                self.seen.index_copy_(0, classes, (seen | is_valid).to(self.seen.dtype))
            self.global_mean.update(batch.global_mean, is_valid)
        return updated.to(sums.dtype)


def _without_rounding_errors(means: Tensor, global_mean: Tensor, num_classes: int) -> Tensor:
    """The means, or zeros if they are mere rounding errors of features that are all the same."""
    smallest = 4 * torch.finfo(means.dtype).eps * math.sqrt(num_classes) * torch.linalg.vector_norm(global_mean)
    # NaN is no rounding error, and stays.
    return torch.where(torch.linalg.vector_norm(means.detach()) <= smallest, 0.0, means)
