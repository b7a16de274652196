"""Validation of features and labels, before any state changes."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from guided_collapse.geometry.operations import is_transformed, operation

if TYPE_CHECKING:
    from guided_collapse.heads.class_means import RunningClassMeans
    from guided_collapse.heads.head import Head

IGNORE_INDEX = -100
"""The label of samples to be left out of all means: the default `ignore_index` of torch's cross-entropy."""

LABEL_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# Tolerance of the sums of soft labels; in half precision, at least four units in the last place.
SUM_TOLERANCE = 1e-3


def is_soft(labels: Tensor) -> bool:
    """Returns whether labels are soft, (..., num_classes), rather than class indices."""
    return labels.is_floating_point()


def checks_values(check_values: bool | None, device: torch.device) -> bool:
    """Returns whether to check values: as requested, or by default on a CPU, where checks do not synchronize with a device."""
    return device.type == "cpu" if check_values is None else check_values


def checked(
    features: Tensor, labels: Tensor | None, sizes: "Head | RunningClassMeans", *, training: bool = True, needs_labels: bool = True
) -> tuple[Tensor, bool]:
    """Returns the features, (..., feature_dim), of a valid batch, and whether the batch is known to be clean (see `Batch`).

    Labels matter only in training mode. Raises the errors of `Head.forward`.
    """
    feature_dim, num_classes = sizes.feature_dim, sizes.num_classes
    # Not `Tensor | None`, which torch.compile in torch 2.6 to 2.9 cannot trace.
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
    """Raises an error unless labels are class indices or soft labels for each row of features, (..., feature_dim)."""
    samples, given = tuple(features.shape[:-1]), tuple(labels.shape)
    if is_soft(labels) and labels.ndim == features.ndim:
        if given != (*samples, num_classes):
            raise ValueError(
                f"soft labels must be (..., num_classes) = {(*samples, num_classes)}, one row per sample; got {given}."
            )
    elif labels.dtype not in LABEL_TYPES:
        raise TypeError(
            f"labels must be class indices, int8 to int64 or uint8; got {labels.dtype}. Use labels.long(), or pass soft labels as "
            f"floating-point rows of {num_classes} probabilities."
        )
    elif given != samples:
        name = "(num_samples,)" if features.ndim == 2 else "features.shape[:-1]"
        fix = "Pass one label for each row."
        if given == (*samples, 1):
            fix = "Use labels.squeeze(-1)."
        elif given == (*samples, num_classes):
            fix = "Convert one-hot labels to floating-point, or use labels.argmax(dim=-1)."
        raise ValueError(f"labels must be {name} = {samples}, one per row of features; got {given}. {fix}")


def _check_values(features: Tensor, labels: Tensor, num_classes: int, training: bool, check: bool) -> bool:
    """Returns whether the batch is known to have finite features and no ignored labels.

    Raises a ValueError for invalid values, and a RuntimeError inside activation checkpointing.
    """
    if training and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "a head updates its state once per batch, so it must stay outside activation checkpointing; got a forward pass during "
            "a backward pass. Checkpoint only the backbone: head(checkpoint(backbone, inputs), labels)."
        )
    if not check:
        return False
    largest = largest_finite(features, "features", f" in a batch of {features.shape[0]}")
    # Sums of squares of centered features over all dimensions and classes must not overflow float32.
    limit = math.sqrt(torch.finfo(torch.float32).max / features.shape[-1] / num_classes) / 2
    if largest > limit:
        raise ValueError(f"features must not exceed {limit:.1e} in size, or their norm overflows; got {largest:.1e}. Rescale them.")
    if is_soft(labels):
        _check_shares(labels)
    return is_soft(labels) or labels.numel() == 0 or _check_indices(labels, num_classes)


# A custom operation that returns the features: a compiled graph neither traces the check nor drops it as unused.
@operation("checked_values")
def _checked_values(features: Tensor, labels: Tensor, num_classes: int, training: bool, check: bool) -> Tensor:
    _check_values(features, labels, num_classes, training, check)
    return features.clone()


@_checked_values.register_fake
def _(features: Tensor, labels: Tensor, num_classes: int, training: bool, check: bool) -> Tensor:
    return torch.empty_like(features)


_checked_values.register_autograd(lambda ctx, grad: (grad, None, None, None, None))


def largest_finite(values: Tensor, name: str, context: str = "") -> float:
    """Returns the largest absolute value, or 0 for an empty tensor; raises a ValueError for NaN and infinity. Allocates no copy."""
    if values.numel() == 0:
        return 0.0
    lowest, highest = (float(value) for value in torch.aminmax(values.detach()))
    largest = max(-lowest, highest)
    if not math.isfinite(largest):
        wrong = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"{name} must be finite; got {wrong} NaN or infinite entries of {values.numel()}{context}. "
            "Look for a diverging loss or a division by zero in the model."
        )
    return largest


def _check_indices(labels: Tensor, num_classes: int) -> bool:
    """Returns whether the batch has no ignored labels; raises a ValueError for labels out of range."""
    lowest, highest = (int(value) for value in torch.aminmax(labels))
    if lowest >= 0 and highest < num_classes:
        return True
    counted = labels[labels != IGNORE_INDEX]
    if counted.numel() > 0 and not 0 <= int(counted.min()) <= int(counted.max()) < num_classes:
        raise ValueError(
            f"labels must be from 0 to num_classes - 1 = {num_classes - 1}; got values from {int(counted.min())} to "
            f"{int(counted.max())}. To ignore a sample, set its label to {IGNORE_INDEX}."
        )
    return False


def _check_shares(labels: Tensor) -> None:
    tolerance = max(SUM_TOLERANCE, 4 * torch.finfo(labels.dtype).eps)
    sums = labels.sum(dim=-1, dtype=torch.promote_types(labels.dtype, torch.float32))
    lowest, smallest, largest = float(labels.min()), float(sums.min()), float(sums.max())
    # Written so that NaN raises, too.
    if not (lowest >= -tolerance and smallest >= 1 - tolerance and largest <= 1 + tolerance):
        raise ValueError(
            "soft labels must be probabilities of mutually exclusive classes: nonnegative, with every row summing to 1; "
            f"got a smallest value of {lowest:.4g} and sums from {smallest:.4g} to {largest:.4g}. Divide each row by its sum. "
            "For multi-label data, call CosineHead(...)(features) without labels and use a per-class loss."
        )
