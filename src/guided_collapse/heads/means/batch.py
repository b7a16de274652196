"""What a head is given: checked before anything changes, and summed over all processes."""

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from guided_collapse.geometry.operations import is_transformed, operation
from guided_collapse.geometry.operations import product
from guided_collapse.heads.means.targets import LEFT_OUT, check_label_shapes, is_soft, look_at_labels


def check_shapes(
    features: Tensor, labels: Tensor | None, *, feature_dim: int, num_classes: int, training: bool, needs_labels: bool = True
) -> None:
    """Refuses a batch whose shapes or types do not fit the head.

    Args:
        features: (..., feature_dim), with at least one leading dimension in training mode.
        labels: (...), class indices, or (..., num_classes), soft, or None.
        feature_dim: d.
        num_classes: C.
        training: whether the batch is to be taken in, without which labels are not looked at.
        needs_labels: whether there must be labels in training mode; those that are given are looked at either way.

    Raises:
        ValueError: with the requirement and what was received.
    """
    # Not `Tensor | None`, which the compiler of torch 2.6 to 2.9 cannot trace.
    if not isinstance(features, Tensor) or not (labels is None or isinstance(labels, Tensor)):
        raise ValueError(
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
        raise ValueError(f"features must be floating-point; got {features.dtype}.")
    if not training:
        return
    if features.numel() == 0:
        raise ValueError("a training batch must have at least one sample; got none. Drop empty batches.")
    if labels is None:
        if needs_labels:
            raise ValueError(
                "labels are required in training mode by a head that follows class means; got None. "
                "Pass head(features, labels), call the model inside `with head.labels(labels):`, or call head.eval() first."
            )
        return
    check_label_shapes(labels, features, num_classes)


def checked_values(
    features: Tensor, labels: Tensor | None, num_classes: int, *, training: bool, state: torch.dtype, check_values: bool | None
) -> Tensor:
    """The features, once they are known to be finite and the labels to be in range, as far as values are looked at.

    Args:
        features: (..., feature_dim).
        labels: (...) or (..., num_classes); None if there are none to look at.
        num_classes: C.
        training: whether the batch is to be taken in.
        state: the type of what keeps means of the features.
        check_values: whether to look at values, which waits for the device; None does on a CPU, where there is nothing to wait for.

    Raises:
        ValueError: for NaN, infinite or too large features, indices outside 0 ... num_classes - 1 that do not say that a sample is
            left out, or soft labels whose rows do not sum to 1.
        RuntimeError: for a batch that is taken in inside a backward pass: activation checkpointing runs the forward pass again.
    """
    if is_transformed():
        return features
    if labels is None:
        labels = torch.zeros(0, dtype=torch.int64, device=features.device)
    largest = min(torch.finfo(torch.promote_types(features.dtype, torch.float32)).max, torch.finfo(state).max)
    # The squares of the class means, once centered, are summed over all classes.
    limit = math.sqrt(largest / features.shape[-1] / num_classes) / 2
    return _checked_values(features, labels, num_classes, limit, training, looks_at_values(check_values, features.device))


def looks_at_values(check_values: bool | None, device: torch.device) -> bool:
    """Whether values are looked at: as asked for, or else where it takes no waiting for a device."""
    return device.type == "cpu" if check_values is None else check_values


# An operation, so that a compiled graph keeps the check: its result is used, and its inside is not traced.
@operation("checked_values")
def _checked_values(features: Tensor, labels: Tensor, num_classes: int, limit: float, training: bool, look: bool) -> Tensor:
    if training and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "a head takes in every batch once, so it must stay outside activation checkpointing; got a forward pass inside a "
            "backward pass. Use head(checkpoint(backbone, inputs), labels): checkpoint the backbone alone."
        )
    if look:
        _look_at(features, labels, num_classes, limit)
    return features.clone()


def _look_at(features: Tensor, labels: Tensor, num_classes: int, limit: float) -> None:
    largest = largest_finite(features, "features", f" in a batch of {features.shape[0]}")
    if largest > limit:
        raise ValueError(f"features must not exceed {limit:.1e}, or their norm overflows; got {largest:.1e}. Rescale the features.")
    look_at_labels(labels, num_classes)


def largest_finite(values: Tensor, name: str, context: str = "") -> float:
    """The largest absolute value, 0 if there are no values; in one pass, and without a temporary in the good case.

    Args:
        values: of any shape.
        name: what a message calls them.
        context: what a message says where it has counted them.

    Raises:
        ValueError: if some are NaN or infinite, with their number.
    """
    if values.numel() == 0:
        return 0.0
    lowest, highest = torch.aminmax(values)
    largest = float(torch.maximum(-lowest, highest))
    if not math.isfinite(largest):
        wrong = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"{name} must be finite; got {wrong} NaN or infinite entries of {values.numel()}{context}. "
            "Look for a diverging loss or a division by zero in the model."
        )
    return largest


@_checked_values.register_fake
def _(features: Tensor, labels: Tensor, num_classes: int, limit: float, training: bool, look: bool) -> Tensor:
    return torch.empty_like(features)


def _pass_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    return grad, None, None, None, None, None


_checked_values.register_autograd(_pass_gradient)


class ClassTotals(NamedTuple):
    """What a batch says of its classes, over all processes."""

    sums: Tensor
    """The sum of each class's points, (num_classes, feature_dim), with gradient."""
    counts: Tensor
    """How many points each class has, (num_classes,), in the dtype of the points: for soft labels the sum of its shares."""


def class_totals(points: Tensor, labels: Tensor, num_classes: int) -> ClassTotals:
    """Sums and counts of the points of each class, over the batches of all processes, differentiable.

    With soft labels y the sum of class c is sum_i y_ic h_i, and its count sum_i y_ic.

    Args:
        points: (num_samples, feature_dim), centered, so that their sums are no small differences of large numbers.
        labels: (num_samples,), int64, or (num_samples, num_classes), soft, in the dtype of the points.
        num_classes: C.
    """
    if is_soft(labels):
        sums, counts = product(labels.T, points), labels.sum(dim=0)
    else:
        # Samples that are left out go to one row more, which is cut off; labels out of range must not, and still fail.
        rows = torch.where(labels == LEFT_OUT, num_classes, labels + (labels >= num_classes))
        sums = points.new_zeros(num_classes + 1, points.shape[1]).index_add(0, rows, points)[:-1]
        counts = points.new_zeros(num_classes + 1).index_add(0, rows, points.new_ones(len(labels)))[:-1]
    totals = sum_over_processes(torch.cat([sums, counts[:, None]], dim=1))
    return ClassTotals(totals[:, :-1], totals[:, -1])


class BatchMean(NamedTuple):
    """The mean of a batch, over all processes."""

    value: Tensor
    """(feature_dim,), with gradient; zero if all samples are left out."""
    is_known: Tensor
    """Whether there is a sample that is not left out, a boolean scalar."""


def batch_mean(features: Tensor, labels: Tensor) -> BatchMean:
    """The mean feature over the batches of all processes, without samples that are left out, differentiable.

    Args:
        features: (num_samples, feature_dim).
        labels: as in `class_totals`; (0,) if there are none.
    """
    num_samples = features.new_full((1,), len(features))
    if len(labels) > 0 and not is_soft(labels):
        is_known = labels != LEFT_OUT
        features = torch.where(is_known[:, None], features, 0.0)
        num_samples = is_known.sum(dim=0, keepdim=True).to(features.dtype)
    totals = sum_over_processes(torch.cat([features.sum(dim=0), num_samples]))
    return BatchMean(totals[:-1] / totals[-1].clamp(min=1), totals[-1] > 0)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of every process's tensor, in every process; its backward sums the gradients of all processes too."""
    return _sum_over_processes(tensor) if _num_processes() > 1 else tensor


def _num_processes() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@operation("sum_over_processes")
def _sum_over_processes(tensor: Tensor) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


@_sum_over_processes.register_fake
def _(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _sum_gradients(ctx: Any, grad: Tensor) -> Tensor:
    return _sum_over_processes(grad)


_sum_over_processes.register_autograd(_sum_gradients)


def gather_over_processes(tensor: Tensor) -> Tensor:
    """The rows of every process's tensor, in every process, in the order of the processes; without gradient.

    Processes may have different numbers of rows, but not in a compiled graph. That they are asked for theirs waits for the device.

    Args:
        tensor: (num_rows, ...), the other sizes the same in all processes.

    Raises:
        RuntimeError: for different numbers of rows in a compiled graph.
    """
    if _num_processes() == 1:
        return tensor
    return _gather_over_processes(tensor, torch.compiler.is_compiling())


@operation("gather_over_processes")
def _gather_over_processes(tensor: Tensor, is_compiled: bool) -> Tensor:
    own_length = torch.tensor([len(tensor)], device=tensor.device)
    lengths = [torch.empty_like(own_length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, own_length)
    known = torch.cat(lengths).tolist()
    if is_compiled and min(known) < max(known):
        raise RuntimeError(
            f"a compiled head must be given as many samples in each process; got {known}. "
            "Drop the last batch if it is a smaller one, or leave the head out of what is compiled."
        )
    padded = tensor.new_zeros(max(known), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    gathered = [torch.empty_like(padded) for _ in known]
    dist.all_gather(gathered, padded)
    return torch.cat([rows[:length] for rows, length in zip(gathered, known, strict=True)])


@_gather_over_processes.register_fake
def _(tensor: Tensor, is_compiled: bool) -> Tensor:
    return tensor.new_empty(len(tensor) * _num_processes(), *tensor.shape[1:])
