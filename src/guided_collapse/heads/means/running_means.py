"""Running means of features: of each class, for the nearest-ETF problem, and of all, for the bias."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import unit_frobenius_norm
from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.heads.means.batch import batch_mean, check_shapes, checked_values, class_totals, looks_at_values
from guided_collapse.heads.means.targets import flat_labels
from guided_collapse.heads.precision import SinglePrecisionState, state_dtype
from guided_collapse.heads.snapshot import snapshot

GLOBAL_MEAN_MOMENTUM = 0.1


class BatchMeans(NamedTuple):
    """What one training step learns about the means; both carry gradient to the batch's features."""

    centered_class_means: Tensor
    """The running class means with this batch in them, (num_classes, feature_dim)."""
    global_mean: Tensor
    """The mean of this batch alone, (feature_dim,)."""


class RunningMean(SinglePrecisionState):
    """The running mean of all features: set by the first batch, then moved by a tenth, as BatchNorm does."""

    value: Tensor
    steps: Tensor

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.empty(feature_dim, dtype=state_dtype()))
        self.register_buffer("steps", torch.empty((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forgets all batches."""
        self.value.zero_()
        self.steps.zero_()

    @torch.no_grad()
    def update(self, mean: Tensor, *, is_known: Tensor, checked: bool = True) -> None:
        """Takes in the mean of one more batch.

        Args:
            mean: (feature_dim,).
            is_known: a boolean scalar; if not, all samples were left out, and the batch is none.
            checked: whether it is known to be finite; if not, one that is not finite leaves the value as it was.
        """
        mean = mean.to(torch.promote_types(mean.dtype, self.value.dtype))
        moved = torch.where(self.steps == 0, mean, torch.lerp(self.value.to(mean.dtype), mean, GLOBAL_MEAN_MOMENTUM))
        moved = torch.where(is_known, moved, self.value)
        self.value.copy_(moved if checked else finite_or(moved, self.value))
        self.steps.add_(is_known)


def finite_or(value: Tensor, otherwise: Tensor) -> Tensor:
    """The value if all of it is finite, otherwise the other, decided on the device."""
    return torch.where(torch.isfinite(value).all(), value, otherwise)


class RunningClassMeans(SinglePrecisionState):
    """Exponential moving average of the centered, normalized class means, over the batches of all processes.

    Step t takes the batch with the share a = max(2/(t+1), 1e-4), so its gradient fades as training goes on: the paper's
    definition. A class that is absent from the batch stays where it was, in the scale of the others; one that was never seen sits
    at the global mean; one that is seen for the first time later on enters at its full value. With every class in every batch this
    is the paper's formula (section 3.5).

    Soft labels y give class means sum_i y_ic h_i / sum_i y_ic. A class is in a batch as soon as a sample has a share of it.

    Args:
        feature_dim: d.
        num_classes: C, at least 2.
        check_values: as for `Head`.

    Example:
        >>> import torch
        >>> from guided_collapse import RunningClassMeans
        >>> means = RunningClassMeans(feature_dim=8, num_classes=3)
        >>> batch = means.update(torch.randn(4, 8), torch.tensor([0, 1, 0, 1]))
        >>> means.seen.tolist(), int(means.steps)
        ([True, True, False], 1)
    """

    running: Tensor
    seen: Tensor
    smallest_share: float = 1e-4
    """What a batch's share does not go below."""

    def __init__(self, feature_dim: int, num_classes: int, *, check_values: bool | None = None) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        self.feature_dim = int(feature_dim)
        self.num_classes = int(num_classes)
        self.check_values = check_values
        self.register_buffer("running", torch.empty(num_classes, feature_dim, dtype=state_dtype()))
        self.register_buffer("seen", torch.empty(num_classes, dtype=torch.bool))
        self.global_mean = RunningMean(feature_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forgets all batches."""
        self.running.zero_()
        self.seen.zero_()
        self.global_mean.reset_parameters()

    @property
    def steps(self) -> Tensor:
        """How many batches were taken in, an integer scalar."""
        return self.global_mean.steps

    def update(self, features: Tensor, labels: Tensor) -> BatchMeans:
        """Takes in one batch and returns the running class means with it, carrying gradient to its features.

        Args:
            features: (..., feature_dim), finite.
            labels: (...), class indices, or (..., num_classes), soft, as for `Head.forward`.

        Raises:
            ValueError: for a batch that does not fit; the state is then as it was.
        """
        check_shapes(features, labels, feature_dim=self.feature_dim, num_classes=self.num_classes, training=True)
        features = checked_values(
            features, labels, self.num_classes, training=True, state=self.running.dtype, check_values=self.check_values
        )
        features = features.flatten(0, -2).to(torch.promote_types(features.dtype, torch.float32))
        labels = flat_labels(labels, features.dtype)
        global_mean = batch_mean(features, labels).value
        return BatchMeans(self.take_in(features - global_mean, global_mean, labels), global_mean)

    def take_in(self, centered_features: Tensor, global_mean: Tensor, labels: Tensor) -> Tensor:
        """Takes in one batch that is checked and centered, and returns the running class means with it.

        Once features are centered, sums over a class are no small differences of large numbers, and need no more digits than these.

        Args:
            centered_features: (num_samples, feature_dim), float32 or wider: the features minus their global mean.
            global_mean: (feature_dim,), the mean over the batches of all processes.
            labels: (num_samples,), int64, or (num_samples, num_classes), soft, in the dtype of the features.

        Returns:
            (num_classes, feature_dim), with gradient to the centered features.
        """
        sums, counts = class_totals(centered_features, labels, self.num_classes)
        present, num_samples = counts > 0, counts.sum()
        is_known = num_samples > 0
        # What rounding has left of the global mean in features that are far from zero.
        residue = sums.sum(dim=0) / torch.where(is_known, num_samples, 1.0)
        dtype = torch.promote_types(centered_features.dtype, self.running.dtype)
        centered = torch.where(present[:, None], sums / torch.where(present, counts, 1.0)[:, None] - residue, 0.0)
        centered = _without_rounding_errors(centered, global_mean.detach()).to(dtype)

        running, seen, step = snapshot(self.running).to(dtype), snapshot(self.seen).to(torch.bool), snapshot(self.steps) + 1
        size, known_size = _root_mean_square(centered.detach(), present), _root_mean_square(running, seen)
        in_scale = running / torch.where(known_size > 0, known_size, 1.0) * size
        absent_but_known = seen & ~present
        batch = unit_frobenius_norm(torch.where(absent_but_known[:, None], in_scale, centered))

        # A batch of samples that are all left out has no share.
        share = torch.where(is_known, self._share(step, dtype), 0.0)
        newly_seen = present & ~seen & (step > 1)
        previous = torch.where(newly_seen[:, None], batch.detach(), running)
        updated = share * batch + (1 - share) * previous

        with torch.no_grad():
            checked = looks_at_values(self.check_values, centered_features.device)
            self.running.copy_(updated if checked else finite_or(updated, running))
            self.seen.logical_or_(present)
            self.global_mean.update(global_mean, is_known=is_known, checked=checked)
        return updated.to(centered_features.dtype)

    def _share(self, step: Tensor, dtype: torch.dtype) -> Tensor:
        """The share a of step t = 1, 2, ..., max(2/(t+1), smallest_share), a scalar."""
        return (2.0 / (step + 1).to(dtype)).clamp(min=self.smallest_share)


def _root_mean_square(rows: Tensor, chosen: Tensor) -> Tensor:
    """The root mean square norm of the chosen rows, a scalar; 0 if none is chosen."""
    total = torch.where(chosen[:, None], rows, 0.0).square().sum()
    return (total / chosen.sum().clamp(min=1)).sqrt()


def _without_rounding_errors(centered: Tensor, global_mean: Tensor) -> Tensor:
    """The centered means, or zeros where they are no more than rounding errors of features that are all the same."""
    smallest = smallest_norm(len(centered), global_mean, centered.dtype)
    # NaN is no rounding error, and stays.
    return torch.where(torch.linalg.vector_norm(centered.detach()) <= smallest, 0.0, centered)


def smallest_norm(num_classes: int, global_mean: Tensor, dtype: torch.dtype) -> Tensor:
    """What the norm of all centered means together is at most, if they are rounding errors of features that are all the same."""
    return 4 * torch.finfo(dtype).eps * math.sqrt(num_classes) * torch.linalg.vector_norm(global_mean)
