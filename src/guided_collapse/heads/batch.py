"""A training batch: checked before anything changes, centered, and summed by class over all processes."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from guided_collapse.geometry.operations import is_transformed, operation, product
from guided_collapse.heads.sphere import on_sphere, sphere_factors, sphere_logits

if TYPE_CHECKING:
    from guided_collapse.heads.class_means import RunningClassMeans
    from guided_collapse.heads.head import Head

IGNORE_INDEX = -100
"""The label of samples that are left out of all means: the default `ignore_index` of torch's cross-entropy."""

LABEL_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# How far the sum of a row of soft labels may be from 1; in half precision, four units in the last place.
SUM_TOLERANCE = 1e-3


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
        # The weight of each sample in a mean, (num_samples,); None stands for equal weights.
        self.parts: Tensor | None = None
        if not self.is_clean:
            is_counted = features.new_ones(len(features))
            if len(labels) > 0 and not is_soft(labels):
                is_counted = (labels != IGNORE_INDEX).to(features.dtype)
            self.num_samples = sum_over_processes(is_counted.sum(dim=0, keepdim=True))
            self.parts = is_counted / self.num_samples.clamp(min=1)

    def mean(self, rows: Tensor) -> Tensor:
        """The mean of one row for each sample, with gradient."""
        return rows.mean(dim=0) if self.parts is None else sum_over_processes(rows.T @ self.parts)

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
        if self.is_clean:
            return mean, None
        # Zero times a number that is not finite is NaN, which is not above 0.
        return mean, self.num_samples[0] + 0 * mean.sum() > 0

    def centered(self, global_mean: Tensor) -> Tensor:
        """The features on the sphere minus a constant, (num_samples, feature_dim), with gradient."""
        if self.scale is None:
            return self.features - global_mean
        return on_sphere(self.features, scale=self.scale, factors=self.factors, center=global_mean)

    def logits(self, weight: Tensor, *, center: bool) -> Tensor:
        """(f - f_G) W', or f W', (num_samples, num_classes), with gradient to features and weight."""
        assert self.scale is not None
        logits = sphere_logits(self.features, weight.to(self.features.dtype), scale=self.scale, factors=self.factors)
        return logits - self.mean(logits) if center else logits


class ClassSums(NamedTuple):
    """Sums over the samples of some classes, over the batches of all processes."""

    sums: Tensor
    """(num_rows, feature_dim)."""
    counts: Tensor
    """(num_rows,): the number of samples, or the total share of soft labels; 0 for classes that are absent."""
    classes: Tensor | None
    """(num_rows,): the class of each row; None if row c is class c. Classes may repeat, but only one of the rows counts samples."""


def sums_of_all_classes(points: Tensor, batch: Batch, num_classes: int) -> ClassSums:
    """One row for each class, differentiable. With soft labels y, sample i belongs to class c with the weight y_ic."""
    labels = batch.labels
    if is_soft(labels):
        sums, counts = product(labels.T, points), labels.sum(dim=0)
    else:
        # Ignored samples go to an extra first row, which is cut off. Labels that are too large must still fail.
        extra = int(not batch.is_clean)
        rows = (labels + 1).clamp(min=0) if extra else labels
        sums = points.new_zeros(num_classes + extra, points.shape[1]).index_add(0, rows, points)[extra:]
        counts = points.new_zeros(num_classes + extra).index_add(0, rows, points.new_ones(len(labels)))[extra:]
    if num_processes() > 1:
        totals = sum_over_processes(torch.cat([sums, counts[:, None]], dim=1))
        sums, counts = totals[:, :-1], totals[:, -1]
    return ClassSums(sums, counts, None)


def sums_of_present_classes(points: Tensor, batch: Batch) -> ClassSums:
    """One row for each sample of all processes, of which only as many count as there are classes in the batch; no gradient.

    The number of rows is fixed so that nothing synchronizes with the device to find out how many classes there are.
    """
    points, labels = gather_over_processes(points.detach()), gather_over_processes(batch.labels)
    is_counted = labels != IGNORE_INDEX
    # Ignored samples join the largest class with weight 0.
    labels, order = torch.where(is_counted, labels, labels.max().clamp(min=0)).sort(stable=True)
    is_counted = is_counted[order]
    starts_class = torch.cat([labels.new_zeros(1), (labels[1:] != labels[:-1]).to(labels.dtype)])
    rows = starts_class.cumsum(0)
    counts = points.new_zeros(len(labels)).index_add(0, rows, is_counted.to(points.dtype))
    sums = torch.zeros_like(points).index_add(0, rows, torch.where(is_counted[:, None], points[order], 0.0))
    return ClassSums(sums, counts, labels[:1].expand(len(labels)).scatter(0, rows, labels))


def is_soft(labels: Tensor) -> bool:
    """Whether labels are shares of classes, (..., num_classes), rather than class indices."""
    return labels.is_floating_point()


def wide(features: Tensor) -> Tensor:
    """The features in float32 or wider."""
    return features.to(torch.promote_types(features.dtype, torch.float32))


def flat_labels(labels: Tensor | None, points: Tensor) -> Tensor:
    """Labels for points of shape (num_samples, feature_dim), whatever their leading dimensions; (0,) for None."""
    if labels is None:
        return torch.zeros(0, dtype=torch.int64, device=points.device)
    return labels.flatten(0, -2).to(points.dtype) if is_soft(labels) else labels.flatten().to(torch.int64)


def checks_values(check_values: bool | None, device: torch.device) -> bool:
    """Whether values are checked: as requested, or by default where that does not synchronize with a device."""
    return device.type == "cpu" if check_values is None else check_values


def checked(
    features: Tensor, labels: Tensor | None, sizes: "Head | RunningClassMeans", *, training: bool = True, needs_labels: bool = True
) -> tuple[Tensor, bool]:
    """The features, (..., feature_dim), once the batch is known to fit, and whether it is known to be clean, see `Batch`.

    Labels, as for `Head.forward`, count in training mode only. Raises what `Head.forward` does.
    """
    feature_dim, num_classes = sizes.feature_dim, sizes.num_classes
    # Not `Tensor | None`, which the compilers of torch 2.6 to 2.9 cannot trace.
    if not isinstance(features, Tensor) or not (labels is None or isinstance(labels, Tensor)):
        raise TypeError(
            "features and labels must be torch tensors; "
            f"got {type(features).__name__} and {type(labels).__name__}. Use torch.as_tensor."
        )
    if features.ndim < 1 + training or features.shape[-1] != feature_dim:
        raise ValueError(
            "features must be (num_samples, feature_dim), or (..., feature_dim) for tokens, "
            f"with feature_dim={feature_dim}; got {tuple(features.shape)}. "
            "Flatten or pool the backbone's output, or build the head with its width."
        )
    if not features.is_floating_point():
        raise TypeError(f"features must be floating-point; got {features.dtype}. Use features.float().")
    if training:
        if features.numel() == 0:
            raise ValueError("a training batch must have at least one sample; got none. Skip empty batches.")
        if labels is not None:
            check_labels(labels, features, num_classes)
        elif needs_labels:
            raise ValueError(
                "labels are required in training mode by a head that follows class means; got None. "
                "Pass head(features, labels), call the model inside `with head.labels(labels):`, or call head.eval() first."
            )
    if is_transformed():
        return features, False
    known = labels if training and labels is not None else torch.zeros(0, dtype=torch.int64, device=features.device)
    check = checks_values(sizes.check_values, features.device)
    if torch.compiler.is_compiling():
        return _checked_values(features, known, num_classes, training, check), False
    return features, _check_values(features, known, num_classes, training, check)


def check_labels(labels: Tensor, features: Tensor, num_classes: int) -> None:
    """Refuses labels that are neither class indices nor shares of all classes for each row of features, (..., feature_dim)."""
    samples, given = tuple(features.shape[:-1]), tuple(labels.shape)
    if is_soft(labels) and labels.ndim == features.ndim:
        if given != (*samples, num_classes):
            raise ValueError(
                f"soft labels must be (..., num_classes) = {(*samples, num_classes)}, one row per sample; got {given}."
            )
    elif labels.dtype not in LABEL_TYPES:
        raise TypeError(
            f"labels must be class indices, int8 to int64 or uint8; got {labels.dtype}. Use labels.long(), or for soft labels "
            f"floating-point rows of {num_classes} shares."
        )
    elif given != samples:
        name = "(num_samples,)" if features.ndim == 2 else "features.shape[:-1]"
        raise ValueError(
            f"labels must be {name} = {samples}, one per row of features; got {given}. "
            "Convert one-hot labels to floating-point, or use labels.argmax(dim=-1)."
        )


def _check_values(features: Tensor, labels: Tensor, num_classes: int, training: bool, check: bool) -> bool:
    """Whether all features are known to be finite and no label to be ignored; raises for values that do not fit."""
    if training and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "a head updates its state once per batch, so it must stay outside activation checkpointing; got a forward pass inside "
            "a backward pass. Checkpoint the backbone alone: head(checkpoint(backbone, inputs), labels)."
        )
    if not check:
        return False
    largest = largest_finite(features, "features", f" in a batch of {features.shape[0]}")
    # Squares of centered features are summed over all dimensions and classes, perhaps in float32.
    limit = math.sqrt(torch.finfo(torch.float32).max / features.shape[-1] / num_classes) / 2
    if largest > limit:
        raise ValueError(f"features must not exceed {limit:.1e}, or their norm overflows; got {largest:.1e}. Rescale the features.")
    if is_soft(labels):
        _check_shares(labels)
    return is_soft(labels) or labels.numel() == 0 or _check_indices(labels, num_classes)


# An operation, so that a compiled graph keeps the check: its result is used and its body is not traced.
@operation("checked_values")
def _checked_values(features: Tensor, labels: Tensor, num_classes: int, training: bool, check: bool) -> Tensor:
    _check_values(features, labels, num_classes, training, check)
    return features.clone()


@_checked_values.register_fake
def _(features: Tensor, labels: Tensor, num_classes: int, training: bool, check: bool) -> Tensor:
    return torch.empty_like(features)


_checked_values.register_autograd(lambda ctx, grad: (grad, None, None, None, None))


def largest_finite(values: Tensor, name: str, context: str = "") -> float:
    """The largest absolute value, 0 if there are none; ValueError for NaN and infinite values. One pass, no temporary."""
    if values.numel() == 0:
        return 0.0
    lowest, highest = torch.aminmax(values.detach())
    largest = float(torch.maximum(-lowest, highest))
    if not math.isfinite(largest):
        wrong = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"{name} must be finite; got {wrong} NaN or infinite entries of {values.numel()}{context}. "
            "Look for a diverging loss or a division by zero in the model."
        )
    return largest


def _check_indices(labels: Tensor, num_classes: int) -> bool:
    """Whether no label is ignored."""
    lowest, highest = (int(value) for value in torch.aminmax(labels))
    if lowest >= 0 and highest < num_classes:
        return True
    counted = labels[labels != IGNORE_INDEX]
    if counted.numel() > 0 and not 0 <= int(counted.min()) <= int(counted.max()) < num_classes:
        raise ValueError(
            f"labels must be in 0 ... num_classes - 1 = {num_classes - 1}; got values from {int(counted.min())} to "
            f"{int(counted.max())}. Give samples to ignore the label {IGNORE_INDEX}."
        )
    return False


def _check_shares(labels: Tensor) -> None:
    tolerance = max(SUM_TOLERANCE, 4 * torch.finfo(labels.dtype).eps)
    sums = labels.sum(dim=-1, dtype=torch.promote_types(labels.dtype, torch.float32))
    lowest, smallest, largest = float(labels.min()), float(sums.min()), float(sums.max())
    # Written so that NaN is refused too.
    if not (lowest >= -tolerance and smallest >= 1 - tolerance and largest <= 1 + tolerance):
        raise ValueError(
            "soft labels must be shares of mutually exclusive classes: none negative, every row summing to 1; "
            f"got a smallest value of {lowest:.4g} and sums from {smallest:.4g} to {largest:.4g}. Divide each row by its sum. "
            "Multi-hot labels have no frame to follow: call CosineHead(...)(features) without labels and use a per-class loss."
        )


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
