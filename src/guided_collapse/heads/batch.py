"""A training batch: on the sphere, centered, and summed by class over all processes, with short backward passes."""

import copy
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.operations import ClosedGradient, is_recorded, operation, product
from guided_collapse.heads.checks import IGNORE_INDEX, is_soft
from guided_collapse.heads.sphere import differentiable_factors, from_sphere, sphere_factors

FEW_CLASSES, MANY_ENTRIES = 32, 2**18
TINY = 1e-30  # what numbers that may be zero are raised to before one divides by them


class Batch:
    """A training batch. Its means are over the batches of all processes, without the samples whose label is ignored.

    Args:
        features: (num_samples, feature_dim), in float32 or wider.
        labels: (num_samples,), int64, or (num_samples, num_classes), soft; (0,) if the batch came without labels.
        scale: the radius of the sphere that features are projected onto; None leaves them where they are.
        is_clean: whether all features are known to be finite and no label to be ignored, which saves operations.
    """

    def __init__(self, features: Tensor, labels: Tensor, *, scale: float | None = None, is_clean: bool) -> None:
        self.features, self.labels, self.scale = features, labels, scale
        # Processes must round alike, even if the batch of another is not clean.
        self.is_clean = is_clean and num_processes() == 1
        self.factors = None if scale is None else sphere_factors(features.detach(), scale)
        self.has_indices = len(labels) > 0 and not is_soft(labels)
        self._shares: Tensor | None = None
        # The number of samples that count, (1,), and the weight of each in a mean, (num_samples,).
        self.num_counted: Tensor | None = None
        self.parts: Tensor | None = None
        if not self.is_clean:
            is_counted = (labels != IGNORE_INDEX).to(features.dtype) if self.has_indices else features.new_ones(len(features))
            self.num_counted = sum_over_processes(is_counted.sum(dim=0, keepdim=True))
            self.parts = is_counted / self.num_counted.clamp(min=1)

    def constant(self) -> "Batch":
        """A copy without gradient for backward passes to keep: keeping the batch itself would keep the network's graph alive."""
        constant = copy.copy(self)
        constant.features = self.features.detach()
        return constant

    def mean(self, rows: Tensor) -> Tensor:
        """The mean of one row for each sample, with gradient."""
        return rows.mean(dim=0) if self.parts is None else sum_over_processes(rows.T @ self.parts)

    def without_mean_backward(self, grad: Tensor) -> Tensor:
        """The gradient with respect to rows, given that of the rows minus their mean."""
        if self.parts is None:
            return grad - grad.mean(dim=0)
        return torch.addr(grad, self.parts, sum_over_processes(grad.sum(dim=0)), alpha=-1)

    def global_mean(self) -> tuple[Tensor, Tensor | None]:
        """The mean f_G, (feature_dim,), and whether some sample counts and all of those are finite, a boolean scalar or None.

        None stands for true. If every sample is ignored the mean is zero. Neither has a gradient.
        """
        features = self.features.detach()
        if self.factors is None:
            mean = self.mean(features)
        else:
            factors = self.factors[:, 0] / len(features) if self.parts is None else self.factors[:, 0] * self.parts
            mean = sum_over_processes(features.T @ factors)
        # Zero times a number that is not finite is NaN, which is not below anything.
        return mean, None if self.num_counted is None else 0 * mean.sum() < self.num_counted[0]

    def logits(self, weight: Tensor, *, center: bool) -> Tensor:
        """(f - f_G) W', or f W', (num_samples, num_classes), with gradient to features and weight."""
        return _logits(self.features, weight.to(self.features.dtype), batch=self.constant(), center=center)

    def rows(self, num_classes: int) -> Tensor | None:
        """The row of sums that each sample goes to, (num_samples,): its label, or one more if ignored samples go to a first row.

        None if products with `shares` are the better way: on accelerators, where they are fewer operations, and for few classes.
        """
        if self.is_clean and self.has_indices:
            return self.labels
        by_shares = self.features.device.type != "cpu" or num_classes <= FEW_CLASSES
        # Labels that are too large must still fail.
        return (self.labels + 1).clamp_(min=0) if self.has_indices and not by_shares else None

    def shares(self, num_classes: int) -> Tensor:
        """The share of each class in each sample, (num_samples, num_classes); zero for ignored samples."""
        if not self.has_indices:
            return self.labels
        if self._shares is None:
            classes = torch.arange(num_classes, device=self.labels.device)
            self._shares = (self.labels[:, None] == classes).to(self.features.dtype)
        return self._shares

    def class_counts(self, num_classes: int) -> Tensor:
        """The number of samples of each class, or the total share of soft labels, (num_classes,)."""
        rows = self.rows(num_classes)
        if self.is_clean and rows is not None:
            return torch.bincount(rows, minlength=num_classes).to(self.features.dtype)
        if rows is None:
            return sum_over_processes(self.shares(num_classes).sum(dim=0))
        return sum_over_processes(self._by_row(self.features.new_ones(len(rows)), rows, num_classes))

    def _by_row(self, values: Tensor, rows: Tensor, num_classes: int) -> Tensor:
        """The sums of values, (num_samples, ...), by row, without that of ignored samples."""
        num_extra = 0 if self.is_clean else 1
        return values.new_zeros(num_classes + num_extra, *values.shape[1:]).index_add_(0, rows, values)[num_extra:]

    def class_means(self, features: Tensor, counts: Tensor, global_mean: Tensor) -> Tensor:
        """The class means minus the global mean f_G, (num_classes, feature_dim), of the batch's features; zero for absent classes.

        `counts` and `global_mean` are what the methods of these names return. Detached features give constants.
        """
        factors = None if self.scale is None else differentiable_factors(features, self.scale, self.factors)
        if is_recorded(features):
            global_mean = self.mean(features if factors is None else features * factors)
        elif self.is_clean and self.has_indices and factors is not None and features.numel() >= MANY_ENTRIES:
            # One pass over the features, without a copy of them: quicker if there are many.
            order, starts = self.labels.argsort(stable=True), (counts.cumsum(0) - counts).to(torch.int64)
            weights = factors[:, 0].index_select(0, order)
            sums = functional.embedding_bag(order, features, starts, mode="sum", per_sample_weights=weights)
            return torch.addr(sums / counts.clamp(min=TINY)[:, None], (counts > 0).to(sums.dtype), global_mean, alpha=-1)
        # Centered first, because sums of features far from zero would lose digits.
        points = features - global_mean if factors is None else torch.addcmul(-global_mean, features, factors)
        rows = self.rows(len(counts))
        by_class = product(self.shares(len(counts)).T, points) if rows is None else self._by_row(points, rows, len(counts))
        sums = sum_over_processes(by_class)
        if self.scale is None:
            # Far from zero the mean is off by more than rounding errors of the differences.
            sums = torch.addr(sums, counts, sums.sum(dim=0) / counts.sum().clamp(min=TINY), alpha=-1)
        return sums / counts.clamp(min=TINY)[:, None]

    def class_means_backward(self, grad: Tensor, counts: Tensor) -> Tensor:
        """The gradient with respect to the features, given that of the class means."""
        grad = sum_over_processes(grad) * (counts > 0)[:, None]
        of_class, total = grad / counts.clamp(min=TINY)[:, None], grad.sum(dim=0)
        rows = self.rows(len(counts))
        if self.is_clean and rows is not None:
            grad = of_class.sub_(total, alpha=1 / len(self.features)).index_select(0, rows)
        elif rows is not None:
            grad = functional.pad(of_class, (0, 0, 1, 0)).index_select(0, rows)
        else:
            grad = product(self.shares(len(counts)), of_class)
        if self.parts is not None:
            grad = torch.addr(grad, self.parts, total, alpha=-1)
        elif rows is None:
            grad = grad.sub_(total, alpha=1 / len(self.features))
        if self.scale is None or self.factors is None:
            return grad
        return from_sphere(grad, self.features.detach(), self.factors, scale=self.scale)


def _logits_forward(features: Tensor, weight: Tensor, *, batch: Batch, center: bool) -> tuple[Tensor, Tensor, Tensor]:
    assert batch.scale is not None
    factors = differentiable_factors(features, batch.scale, batch.factors)
    products = features @ weight.T
    logits = products * factors
    return logits - batch.mean(logits) if center else logits, products, factors


def _logits_backward(
    grad: Tensor, needed: list[Tensor], features: Tensor, weight: Tensor, *, batch: Batch, center: bool
) -> tuple[Tensor, Tensor | None]:
    assert batch.scale is not None
    products, factors = needed
    scaled = (batch.without_mean_backward(grad) if center else grad) * factors
    along = (scaled * products).sum(dim=-1, keepdim=True).mul_(factors).mul_(factors)
    grad_weight = scaled.T @ features if weight.requires_grad else None
    return (features * along).addmm_(scaled, weight, beta=-(batch.scale**-2)), grad_weight


_logits = ClosedGradient(_logits_forward, _logits_backward)


class PresentClasses(NamedTuple):
    """The means of classes in the batches of all processes, one row for each sample."""

    means: Tensor
    """The mean of the sample's class minus f_G, (num_rows, feature_dim), or zero for rows that stand for nothing."""
    classes: Tensor
    """(num_rows,): the class of each row."""
    stands: Tensor
    """(num_rows,): whether the row stands for its class. One row does for each class that is present, and others may."""


def present_class_means(batch: Batch, counts: Tensor, global_mean: Tensor) -> PresentClasses:
    """`Batch.class_means` without gradient and in as many rows as there are samples, whatever the number of classes.

    The number of rows is fixed so that nothing synchronizes with the device to find out how many classes there are.
    """
    features = batch.features.detach()
    points = features - global_mean if batch.factors is None else torch.addcmul(-global_mean, features, batch.factors)
    points, labels = gather_over_processes(points), gather_over_processes(batch.labels)
    if not batch.is_clean:
        # Ignored samples join class 0 as zeros.
        points, labels = torch.where((labels != IGNORE_INDEX)[:, None], points, 0.0), labels.clamp(min=0)
    numbers = torch.arange(len(labels), device=labels.device)
    # The first sample of each class stands for it.
    first = numbers.new_full((len(counts),), len(labels)).scatter_reduce_(0, labels, numbers, "amin")[labels]
    sums = torch.zeros_like(points).index_add_(0, first, points)
    return PresentClasses(sums / counts.clamp(min=TINY)[labels][:, None], labels, first == numbers)


def wide(features: Tensor) -> Tensor:
    """The features in float32 or wider."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


def flat_labels(labels: Tensor | None, points: Tensor) -> Tensor:
    """Labels for points of shape (num_samples, feature_dim), whatever their leading dimensions; (0,) for None."""
    if labels is None:
        return torch.zeros(0, dtype=torch.int64, device=points.device)
    return labels.flatten(0, -2).to(points.dtype) if is_soft(labels) else labels.flatten().to(torch.int64)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of every process's tensor, in every process; its backward sums the gradients of all processes."""
    return _sum_over_processes(tensor) if num_processes() > 1 else tensor


def num_processes() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@operation("sum_over_processes")
def _sum_over_processes(tensor: Tensor) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


@_sum_over_processes.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


_sum_over_processes.register_autograd(lambda ctx, grad: _sum_over_processes(grad))


def gather_over_processes(tensor: Tensor) -> Tensor:
    """The rows of every process's tensor, in the order of the processes; without gradient.

    Processes may have different numbers of rows, but not in a compiled graph. Finding out synchronizes with the device.
    """
    return _gather_over_processes(tensor, torch.compiler.is_compiling()) if num_processes() > 1 else tensor


@operation("gather_over_processes")
def _gather_over_processes(tensor: Tensor, is_compiled: bool) -> Tensor:
    own_length = torch.tensor([len(tensor)], device=tensor.device)
    lengths = [torch.empty_like(own_length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, own_length)
    known = torch.cat(lengths).tolist()
    if is_compiled and min(known) < max(known):
        raise RuntimeError(
            f"a compiled head needs the same number of samples in each process; got {known}. "
            "Drop the smaller last batch, or leave the head out of the compiled graph."
        )
    padded = tensor.new_zeros(max(known), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    gathered = [torch.empty_like(padded) for _ in known]
    dist.all_gather(gathered, padded)
    return torch.cat([rows[:length] for rows, length in zip(gathered, known, strict=True)])


@_gather_over_processes.register_fake
def _(tensor: Tensor, is_compiled: bool) -> Tensor:
    return tensor.new_empty(len(tensor) * num_processes(), *tensor.shape[1:])
