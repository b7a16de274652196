"""A training batch whose features are projected, centered, and averaged by class over all processes, with cheap backward passes."""

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
TINY = 1e-30  # lower limit of divisors that may be zero


class Batch:
    """A training batch. Its means are taken over the batches of all processes and leave out samples with an ignored label.

    Args:
        features: (num_samples, feature_dim), in float32 or wider.
        labels: (num_samples,), int64, or soft labels, (num_samples, num_classes); (0,) for a batch without labels.
        scale: the radius of the sphere that features are projected onto; if None, they are not projected.
        is_clean: whether all features are known to be finite and all labels known not to be ignored, which saves operations.
    """

    def __init__(self, features: Tensor, labels: Tensor, *, scale: float | None = None, is_clean: bool) -> None:
        self.features, self.labels, self.scale = features, labels, scale
        # All processes must round alike, even if only one of their batches is not clean.
        self.is_clean = is_clean and num_processes() == 1
        self.factors = None if scale is None else sphere_factors(features.detach(), scale)
        self.has_indices = len(labels) > 0 and not is_soft(labels)
        self._shares: Tensor | None = None
        # The number of samples that are not ignored, (1,), and the weight of each sample in a mean, (num_samples,); None if the
        # batch is clean.
        self.num_counted: Tensor | None = None
        self.parts: Tensor | None = None
        if not self.is_clean:
            is_counted = (labels != IGNORE_INDEX).to(features.dtype) if self.has_indices else features.new_ones(len(features))
            self.num_counted = sum_over_processes(is_counted.sum(dim=0, keepdim=True))
            self.parts = is_counted / self.num_counted.clamp(min=1)

    def constant(self) -> "Batch":
        """Returns a detached copy for backward passes to save; saving the batch itself would keep the network's graph alive."""
        constant = copy.copy(self)
        constant.features = self.features.detach()
        return constant

    def mean(self, rows: Tensor) -> Tensor:
        """Returns the mean over samples of `rows`, (num_samples, ...), with gradient."""
        return rows.mean(dim=0) if self.parts is None else sum_over_processes(rows.T @ self.parts)

    def without_mean_backward(self, grad: Tensor) -> Tensor:
        """Returns the gradient with respect to rows, given the gradient with respect to the rows minus their mean."""
        if self.parts is None:
            return grad - grad.mean(dim=0)
        return torch.addr(grad, self.parts, sum_over_processes(grad.sum(dim=0)), alpha=-1)

    def global_mean(self) -> tuple[Tensor, Tensor | None]:
        """Returns the mean f_G of the batch, (feature_dim,), and whether the batch is valid, both without gradient.

        The mean is zero if every sample is ignored. A batch is valid if at least one sample is not ignored and all features are
        finite, including those of ignored samples. Validity is a boolean scalar, or None if the batch is known to be valid.
        """
        features = self.features.detach()
        if self.factors is None:
            mean = self.mean(features)
        else:
            factors = self.factors[:, 0] / len(features) if self.parts is None else self.factors[:, 0] * self.parts
            mean = sum_over_processes(features.T @ factors)
        # 0 times a nonfinite number is NaN, and comparisons with NaN are False.
        return mean, None if self.num_counted is None else 0 * mean.sum() < self.num_counted[0]

    def logits(self, weight: Tensor, *, center: bool) -> Tensor:
        """Returns (f - f_G) W' or, without centering, f W', (num_samples, num_classes), differentiable in features and weight."""
        return _logits(self.features, weight.to(self.features.dtype), batch=self.constant(), center=center)

    def rows(self, num_classes: int) -> Tensor | None:
        """Returns each sample's row index in a matrix of class sums, or None if a product with `shares` is faster.

        The indices, (num_samples,), are the labels, or labels + 1 if row 0 collects ignored samples. Products with `shares` are
        faster on accelerators, where they take fewer operations, and for few classes.
        """
        if self.is_clean and self.has_indices:
            return self.labels
        by_shares = self.features.device.type != "cpu" or num_classes <= FEW_CLASSES
        # Labels of num_classes or more are not clamped, so that they still raise an error.
        return (self.labels + 1).clamp_(min=0) if self.has_indices and not by_shares else None

    def shares(self, num_classes: int) -> Tensor:
        """Returns one-hot or soft labels, (num_samples, num_classes); zero for ignored samples."""
        if not self.has_indices:
            return self.labels
        if self._shares is None:
            classes = torch.arange(num_classes, device=self.labels.device)
            self._shares = (self.labels[:, None] == classes).to(self.features.dtype)
        return self._shares

    def class_counts(self, num_classes: int) -> Tensor:
        """Returns the number of samples of each class, or the sum of its soft labels, (num_classes,)."""
        rows = self.rows(num_classes)
        if self.is_clean and rows is not None:
            return torch.bincount(rows, minlength=num_classes).to(self.features.dtype)
        if rows is None:
            return sum_over_processes(self.shares(num_classes).sum(dim=0))
        return sum_over_processes(self._by_row(self.features.new_ones(len(rows)), rows, num_classes))

    def _by_row(self, values: Tensor, rows: Tensor, num_classes: int) -> Tensor:
        """Returns the sums of values, (num_samples, ...), over the samples of each row, without the row of ignored samples."""
        num_extra = 0 if self.is_clean else 1
        return values.new_zeros(num_classes + num_extra, *values.shape[1:]).index_add_(0, rows, values)[num_extra:]

    def class_means(self, features: Tensor, counts: Tensor, global_mean: Tensor) -> Tensor:
        """Returns class means minus f_G, (num_classes, feature_dim), zero for absent classes; differentiable in `features`.

        `counts` is the result of the method `class_counts`, and `global_mean` the first result of the method `global_mean`.
        """
        factors = None if self.scale is None else differentiable_factors(features, self.scale, self.factors)
        if is_recorded(features):
            global_mean = self.mean(features if factors is None else features * factors)
        elif self.is_clean and self.has_indices and factors is not None and features.numel() >= MANY_ENTRIES:
            # For large batches: a single pass over the features, without a copy.
            order, starts = self.labels.argsort(stable=True), (counts.cumsum(0) - counts).to(torch.int64)
            weights = factors[:, 0].index_select(0, order)
            sums = functional.embedding_bag(order, features, starts, mode="sum", per_sample_weights=weights)
            return torch.addr(sums / counts.clamp(min=TINY)[:, None], (counts > 0).to(sums.dtype), global_mean, alpha=-1)
        # Center before summing, because sums of features far from zero lose digits.
        points = features - global_mean if factors is None else torch.addcmul(-global_mean, features, factors)
        rows = self.rows(len(counts))
        by_class = product(self.shares(len(counts)).T, points) if rows is None else self._by_row(points, rows, len(counts))
        sums = sum_over_processes(by_class)
        if self.scale is None:
            # Far from zero, the rounding error of the mean exceeds the rounding errors of the differences.
            sums = torch.addr(sums, counts, sums.sum(dim=0) / counts.sum().clamp(min=TINY), alpha=-1)
        return sums / counts.clamp(min=TINY)[:, None]

    def class_means_backward(self, grad: Tensor, counts: Tensor) -> Tensor:
        """Returns the gradient with respect to the features, given the gradient with respect to the class means."""
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
    """Means of the classes in the batches of all processes, one row per sample."""

    means: Tensor
    """The class mean minus f_G in the first row of each class, zero in all other rows, (num_rows, feature_dim)."""
    classes: Tensor
    """Class of each row, (num_rows,)."""
    is_first: Tensor
    """Whether the row is the first of its class, (num_rows,)."""


def present_class_means(batch: Batch, counts: Tensor, global_mean: Tensor) -> PresentClasses:
    """Returns `Batch.class_means` without gradient, with one row per sample instead of one per class.

    With one row per present class, counting the present classes would require a synchronization with the device.
    """
    features = batch.features.detach()
    points = features - global_mean if batch.factors is None else torch.addcmul(-global_mean, features, batch.factors)
    points, labels = gather_over_processes(points), gather_over_processes(batch.labels)
    if not batch.is_clean:
        # Ignored samples are treated as zero vectors of class 0.
        points, labels = torch.where((labels != IGNORE_INDEX)[:, None], points, 0.0), labels.clamp(min=0)
    numbers = torch.arange(len(labels), device=labels.device)
    first = numbers.new_full((len(counts),), len(labels)).scatter_reduce_(0, labels, numbers, "amin")[labels]
    sums = torch.zeros_like(points).index_add_(0, first, points)
    return PresentClasses(sums / counts.clamp(min=TINY)[labels][:, None], labels, first == numbers)


def wide(features: Tensor) -> Tensor:
    """Returns the features, promoted to at least float32."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


def flat_labels(labels: Tensor | None, points: Tensor) -> Tensor:
    """Returns labels flattened to (num_samples,), or (num_samples, num_classes) if soft; an empty tensor, (0,), for None."""
    if labels is None:
        return torch.zeros(0, dtype=torch.int64, device=points.device)
    return labels.flatten(0, -2).to(points.dtype) if is_soft(labels) else labels.flatten().to(torch.int64)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """Returns the all-reduced sum of a tensor over processes; its backward pass sums the gradients of all processes."""
    return _sum_over_processes(tensor) if num_processes() > 1 else tensor


def num_processes() -> int:
    """Returns the world size of torch.distributed, or 1 without it."""
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
    """Returns the concatenated rows of all processes in the order of their ranks, without gradient.

    The number of rows may differ between processes, except in a compiled graph. Exchanging these numbers synchronizes with the
    device.
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
            f"a compiled head needs the same number of samples in every process; got {known}. "
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
