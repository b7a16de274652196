"""Checks of what users pass to the metrics."""

from torch import Tensor

from guided_collapse.geometry.simplex import check_num_classes
from guided_collapse.heads.batch import LABEL_TYPES, largest_finite

SMALLEST, LARGEST = 1e-140, 1e140
"""Between these, sums of squares neither overflow nor vanish in float64."""


def check_samples(
    features: Tensor, labels: Tensor, num_classes: int | None, *, feature_dim: int | None = None, prefix: str = ""
) -> int:
    """Checks features (num_samples, feature_dim) and labels (num_samples,), and returns the number of classes.

    A `num_classes` of None takes the largest label + 1, a `feature_dim` of None any width. The prefix precedes names in messages:
    "test_" for test data.
    """
    for name, value in ((f"{prefix}features", features), (f"{prefix}labels", labels)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor; got {type(value).__name__}. Use torch.as_tensor({name}).")
    if features.ndim != 2 or features.shape[1] == 0 or feature_dim not in (None, features.shape[1]):
        width = "with at least one column" if feature_dim is None else f"with feature_dim={feature_dim}"
        raise ValueError(
            f"{prefix}features must be a matrix (num_samples, feature_dim) {width}; got {tuple(features.shape)}. "
            "Pool or flatten them to one row per sample, from the same layer for all samples."
        )
    if not features.is_floating_point():
        raise TypeError(f"{prefix}features must be floating-point; got {features.dtype}. Use {prefix}features.float().")
    if labels.dtype not in LABEL_TYPES:
        raise TypeError(
            f"{prefix}labels must be class indices, int8 to int64 or uint8; got {labels.dtype}. "
            "Use labels.long(), or labels.argmax(dim=1) for soft labels."
        )
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"{prefix}labels must be (num_samples,) = ({len(features)},), one per row of {prefix}features; "
            f"got {tuple(labels.shape)}. Take both from the same samples, and labels.argmax(dim=1) of one-hot labels."
        )
    lowest, highest = (int(labels.min()), int(labels.max())) if len(labels) > 0 else (0, -1)
    if num_classes is None:
        if highest > 1000 + 10 * len(labels):
            raise ValueError(
                f"labels must be class indices from 0; got up to {highest} for {len(labels)} samples. "
                "Number the classes from 0, or pass num_classes."
            )
        num_classes = highest + 1
    check_num_classes(num_classes)
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"{prefix}labels must be in 0 ... num_classes - 1 = {num_classes - 1}; got values from {lowest} to {highest}. "
            "Number the classes from 0, or pass a larger num_classes."
        )
    check_sizes(features, f"{prefix}features")
    return num_classes


def check_classifier(weight: Tensor | None, bias: Tensor | None, feature_dim: int, num_classes: int) -> None:
    """Checks that weight and bias belong to these features and classes."""
    if weight is None and bias is not None:
        raise ValueError("a bias needs a weight; got a bias alone. Pass the classifier's weight too.")
    for name, value, shape in (("weight", weight, (num_classes, feature_dim)), ("bias", bias, (num_classes,))):
        if value is None:
            continue
        if not isinstance(value, Tensor) or not value.is_floating_point():
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} must be a floating-point tensor; got {found}.")
        if value.shape != shape:
            sizes = "(num_classes, feature_dim)" if name == "weight" else "(num_classes,)"
            raise ValueError(f"{name} must be {sizes} = {shape}, as nn.Linear has it; got {tuple(value.shape)}.")
        check_sizes(value, name, not_vanishing=name == "weight")


def check_sizes(values: Tensor, name: str, *, not_vanishing: bool = False) -> None:
    """Refuses NaN, infinite and huge entries; on request also values that are all tiny but not all zero."""
    largest = largest_finite(values, name)
    if largest > LARGEST or (not_vanishing and 0 < largest < SMALLEST):
        raise ValueError(f"{name} must be between {SMALLEST:.0e} and {LARGEST:.0e} in size; got up to {largest:.1e}. Rescale them.")
