"""Checks of what users pass to the metrics."""

import math

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import check_num_classes
from guided_collapse.heads.batch import LABEL_TYPES

SMALLEST, LARGEST = 1e-140, 1e140
"""Between these, sums of squares neither overflow nor vanish in float64."""


def check_samples(features: Tensor, labels: Tensor, num_classes: int, *, feature_dim: int | None = None, prefix: str = "") -> None:
    """Checks features (num_samples, feature_dim) and labels (num_samples,): types, shapes, classes, and finite values.

    A `feature_dim` of None takes any width. The prefix precedes the names in messages: "test_" for test data.
    """
    check_shapes(features, labels, prefix=prefix)
    if feature_dim is not None and features.shape[1] != feature_dim:
        raise ValueError(
            f"{prefix}features must have feature_dim={feature_dim} columns; got {tuple(features.shape)}. "
            "Take them from the same layer as the others."
        )
    check_num_classes(num_classes)
    if len(labels) > 0 and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(
            f"{prefix}labels must be in 0 ... num_classes - 1 = {num_classes - 1}; got values from {int(labels.min())} to "
            f"{int(labels.max())}. Number the classes from 0, or pass a larger num_classes."
        )
    check_finite(features, f"{prefix}features")


def check_shapes(features: Tensor, labels: Tensor, *, prefix: str = "") -> None:
    """Checks types and shapes alone."""
    for name, value in ((f"{prefix}features", features), (f"{prefix}labels", labels)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor; got {type(value).__name__}. Use torch.as_tensor({name}).")
    if features.ndim != 2 or features.shape[1] == 0:
        raise ValueError(
            f"{prefix}features must be a matrix (num_samples, feature_dim) with at least one column; got {tuple(features.shape)}. "
            "Pool or flatten them to one row per sample."
        )
    if not features.is_floating_point():
        raise TypeError(f"{prefix}features must be floating-point; got {features.dtype}. Use {prefix}features.float().")
    if labels.dtype not in LABEL_TYPES:
        way_out = "Soft labels are not supported: use labels.argmax(dim=1)." if labels.ndim == 2 else "Use labels.long()."
        raise TypeError(f"{prefix}labels must be class indices, int8 to int64 or uint8; got {labels.dtype}. {way_out}")
    if labels.shape != features.shape[:1]:
        one_hot = labels.ndim == 2 and len(labels) == len(features)
        way_out = "Turn one-hot labels into indices: labels.argmax(dim=1)." if one_hot else "Take both from the same samples."
        raise ValueError(
            f"{prefix}labels must be (num_samples,) = ({len(features)},), one per row of {prefix}features; "
            f"got {tuple(labels.shape)}. {way_out}"
        )


def classes_shown_by(labels: Tensor) -> int:
    """Returns the largest label + 1, unless it is so far beyond the number of samples that labels are not class indices."""
    if len(labels) == 0:
        raise ValueError("features must have at least one row; got none. Measure on some data.")
    largest = int(labels.max())
    if largest > 1000 + 10 * len(labels):
        raise ValueError(
            f"labels must be class indices from 0; got up to {largest} for {len(labels)} samples. "
            "Number the classes from 0, or pass num_classes."
        )
    return largest + 1


def check_finite(values: Tensor, name: str, *, not_vanishing: bool = False) -> None:
    """Refuses NaN, infinite and huge entries; on request also values that are all tiny but not all zero."""
    lowest, highest = torch.aminmax(values.detach()) if values.numel() else values.new_zeros(2)
    largest = float(torch.maximum(-lowest, highest))
    if not math.isfinite(largest):
        wrong = int((~torch.isfinite(values)).sum())
        raise ValueError(
            f"{name} must be finite; got {wrong} NaN or infinite entries of {values.numel()}. "
            "Look for a diverging loss or a division by zero in the model."
        )
    if largest > LARGEST:
        raise ValueError(f"{name} must not exceed {LARGEST:.0e}, or sums of squares overflow; got {largest:.1e}. Rescale them.")
    if not_vanishing and 0 < largest < SMALLEST:
        raise ValueError(f"{name} must not all be below {SMALLEST:.0e}, or squares vanish; got up to {largest:.1e}. Rescale them.")


def check_classifier(weight: Tensor | None, bias: Tensor | None, feature_dim: int, num_classes: int) -> None:
    """Checks that weight and bias belong to these features and classes."""
    if weight is None and bias is not None:
        raise ValueError("a bias needs a weight; got a bias alone. Pass the classifier's weight too.")
    shapes = {"weight": (num_classes, feature_dim), "bias": (num_classes,)}
    for (name, shape), value in zip(shapes.items(), (weight, bias), strict=True):
        if value is None:
            continue
        if not isinstance(value, Tensor) or not value.is_floating_point():
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} must be a floating-point tensor; got {found}.")
        if value.shape != shape:
            raise ValueError(
                f"{name} must be {'(num_classes, feature_dim)' if name == 'weight' else '(num_classes,)'} = {shape}; "
                f"got {tuple(value.shape)}. Pass it as nn.Linear has it, with one row per class."
            )
        check_finite(value, name, not_vanishing=name == "weight")
