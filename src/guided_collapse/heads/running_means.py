"""Running means of features: of each class, for the nearest-ETF problem, and of all, for the bias."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import unit_frobenius_norm
from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.heads.batch import check_shapes, checked_values, class_totals
from guided_collapse.heads.precision import SinglePrecisionState, state_dtype
from guided_collapse.heads.snapshot import snapshot

GLOBAL_MEAN_MOMENTUM = 0.1
SMALLEST_STEP_SHARE = 1e-4


class BatchMeans(NamedTuple):
    """What one training step learns about the means; both carry gradient to the batch's features."""

    centred_class_means: Tensor
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
    def update(self, batch_mean: Tensor) -> None:
        """Takes in the mean of one more batch, (feature_dim,)."""
        batch_mean = batch_mean.to(torch.promote_types(batch_mean.dtype, self.value.dtype))
        moved = torch.lerp(self.value.to(batch_mean.dtype), batch_mean, GLOBAL_MEAN_MOMENTUM)
        self.value.copy_(torch.where(self.steps == 0, batch_mean, moved))
        self.steps.add_(1)


class RunningClassMeans(SinglePrecisionState):
    """Exponential moving average of the centred, normalised class means, over the batches of all processes.

    Step t takes the batch with the share a = max(2/(t+1), 1e-4), so its gradient fades as training goes on: the paper's
    definition. A class that is absent from the batch stays where it was, in the scale of the others; one that was never seen sits
    at the global mean; one that is seen for the first time later on enters at its full value. With every class in every batch this
    is the paper's formula (section 3.5).

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

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        self.feature_dim, self.num_classes = int(feature_dim), int(num_classes)
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
            features: (num_samples, feature_dim), finite.
            labels: (num_samples,), class indices.

        Raises:
            ValueError: for a batch that does not fit; the state is then as it was.
        """
        check_shapes(features, labels, feature_dim=self.feature_dim, training=True)
        features = checked_values(features, labels, self.num_classes, state=self.running.dtype)
        return self.update_checked(features.to(torch.promote_types(features.dtype, torch.float32)), labels.to(torch.int64))

    def update_checked(self, features: Tensor, labels: Tensor) -> BatchMeans:
        """`update` for features in float32 or wider and labels in int64 that were checked already."""
        sums, counts = class_totals(features, labels, self.num_classes)
        present = counts > 0
        class_means = sums / counts.clamp(min=1)[:, None]
        global_mean = sums.sum(dim=0) / counts.sum()
        centred = torch.where(present[:, None], class_means - global_mean, 0.0)
        dtype = torch.promote_types(features.dtype, self.running.dtype)
        centred = _without_rounding_errors(centred, class_means.detach(), features.dtype).to(dtype)

        running, seen, step = snapshot(self.running).to(dtype), snapshot(self.seen), snapshot(self.steps) + 1
        size, known_size = _root_mean_square(centred.detach(), present), _root_mean_square(running, seen)
        in_scale = running / torch.where(known_size > 0, known_size, 1.0) * size
        absent_but_known = seen & ~present
        batch = unit_frobenius_norm(torch.where(absent_but_known[:, None], in_scale, centred))

        share = (2.0 / (step + 1).to(dtype)).clamp(min=SMALLEST_STEP_SHARE)
        newly_seen = present & ~seen & (step > 1)
        previous = torch.where(newly_seen[:, None], batch.detach(), running)
        updated = share * batch + (1 - share) * previous

        with torch.no_grad():
            self.running.copy_(updated)
            self.seen.logical_or_(present)
            self.global_mean.update(global_mean.to(dtype))
        return BatchMeans(updated.to(features.dtype), global_mean.to(features.dtype))


def _root_mean_square(rows: Tensor, chosen: Tensor) -> Tensor:
    """The root mean square norm of the chosen rows, a scalar; 0 if none is chosen."""
    total = torch.where(chosen[:, None], rows, 0.0).square().sum()
    return (total / chosen.sum().clamp(min=1)).sqrt()


def _without_rounding_errors(centred: Tensor, class_means: Tensor, dtype: torch.dtype) -> Tensor:
    """The centred means, or zeros where they are no more than rounding errors of features that are all the same."""
    smallest = 4 * torch.finfo(dtype).eps * torch.linalg.vector_norm(class_means)
    return torch.where(torch.linalg.vector_norm(centred.detach()) > smallest, centred, 0.0)
