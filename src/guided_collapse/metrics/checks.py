"""What the metrics are given, checked at the public door."""

from torch import Tensor

from guided_collapse.geometry.simplex import check_num_classes
from guided_collapse.heads.batch import largest_finite
from guided_collapse.heads.batch import LABEL_TYPES

SMALLEST, LARGEST = 1e-140, 1e140
"""Between these, sums of squares neither overflow nor vanish in float64."""


def check_samples(features: Tensor, labels: Tensor, num_classes: int, *, feature_dim: int | None = None, prefix: str = "") -> None:
    """Refuses features and labels that do not fit each other, or that no statistics can be taken of.

    Args:
        features: to be (num_samples, feature_dim), finite.
        labels: to be (num_samples,), class indices.
        num_classes: what the labels must be below.
        feature_dim: what the width must be; None takes any.
        prefix: goes before "features" and "labels" in messages: "test_" for test data.

    Raises:
        ValueError: with the requirement, what was received, and a way out.
    """
    check_matching(features, labels, prefix=prefix)
    if feature_dim is not None and features.shape[1] != feature_dim:
        raise ValueError(
            f"{prefix}features must have feature_dim={feature_dim} columns; got {tuple(features.shape)}. "
            "Take them from the same layer as the rest."
        )
    check_num_classes(num_classes)
    if len(labels) > 0 and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(
            f"{prefix}labels must be in 0 ... num_classes - 1 = {num_classes - 1}; got values from {int(labels.min())} to "
            f"{int(labels.max())}. Number the classes from 0, or pass a larger num_classes."
        )
    check_finite(features, f"{prefix}features")


def check_matching(features: Tensor, labels: Tensor, *, prefix: str = "") -> None:
    """Refuses features and labels of the wrong type or shape."""
    for name, value in ((f"{prefix}features", features), (f"{prefix}labels", labels)):
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} must be a torch tensor; got {type(value).__name__}. Use torch.as_tensor({name}).")
    if features.ndim != 2 or not features.is_floating_point():
        raise ValueError(
            f"{prefix}features must be a floating-point matrix (num_samples, feature_dim); got shape {tuple(features.shape)} of "
            f"{features.dtype}. Pool or flatten them to one row for each sample."
        )
    if features.shape[1] == 0:
        raise ValueError(f"{prefix}features must have at least one column; got shape {tuple(features.shape)}.")
    if labels.dtype not in LABEL_TYPES:
        way_out = "Soft labels are not supported: use labels.argmax(dim=1)." if labels.ndim == 2 else "Use labels.long()."
        raise ValueError(
            f"{prefix}labels must be class indices of an integer type, int8 to int64 or uint8; got {labels.dtype} of shape "
            f"{tuple(labels.shape)}. {way_out}"
        )
    if labels.shape != features.shape[:1]:
        if labels.ndim == 2 and len(labels) == len(features):
            way_out = "One-hot labels become indices by labels.argmax(dim=1)."
        else:
            way_out = "Make sure that both come from the same samples in the same order."
        raise ValueError(
            f"{prefix}labels must be (num_samples,) = ({len(features)},), one for each row of {prefix}features; "
            f"got {tuple(labels.shape)}. {way_out}"
        )


def classes_shown_by(labels: Tensor) -> int:
    """The largest label + 1, unless it is so far beyond the number of samples that the labels are no class indices."""
    if len(labels) == 0:
        raise ValueError("features must have at least one row; got none. Measure on some data.")
    largest = int(labels.max())
    if largest > 1000 + 10 * len(labels):
        raise ValueError(
            f"labels must be class indices from 0; got up to {largest} for {len(labels)} samples. "
            "Number the classes from 0, or pass num_classes."
        )
    return largest + 1


def check_finite(values: Tensor, name: str) -> None:
    """Refuses NaN and infinite entries, and says how many there are, and entries whose squares would be infinite."""
    largest = largest_finite(values.detach(), name)
    if largest > LARGEST:
        raise ValueError(f"{name} must not exceed {LARGEST:.0e}, or sums of squares overflow; got {largest:.1e}. Rescale them.")


def check_not_vanishing(values: Tensor, name: str) -> None:
    """Refuses values so small that their squares vanish, unless all are zero."""
    largest = largest_finite(values.detach(), name)
    if 0 < largest < SMALLEST:
        raise ValueError(f"{name} must not all be below {SMALLEST:.0e}, or squares vanish; got up to {largest:.1e}. Rescale them.")


def check_classifier(weight: Tensor | None, bias: Tensor | None, num_classes: int, feature_dim: int) -> None:
    """Refuses a weight or a bias that does not belong to these classes and features."""
    if weight is None:
        if bias is not None:
            raise ValueError("a bias needs a weight; got a bias alone. Pass the classifier's weight too.")
        return
    if weight.shape != (num_classes, feature_dim) or not weight.is_floating_point():
        raise ValueError(
            f"weight must be a floating-point (num_classes, feature_dim) = ({num_classes}, {feature_dim}); got "
            f"{tuple(weight.shape)} of {weight.dtype}. One row for each class, as in nn.Linear; transpose it if need be."
        )
    check_finite(weight, "weight")
    if bias is None:
        return
    if bias.shape != (num_classes,) or not bias.is_floating_point():
        raise ValueError(
            f"bias must be a floating-point (num_classes,) = ({num_classes},); got {tuple(bias.shape)} of {bias.dtype}. "
            "Leave it out for a classifier without one."
        )
    check_finite(bias, "bias")


def check_enough_classes(counts: Tensor) -> None:
    """Refuses samples of fewer than two classes."""
    present = int((counts > 0).sum())
    if present < 2:
        raise ValueError(
            f"at least two classes must have samples, collapse is about the classes relative to each other; got samples of "
            f"{present} of {len(counts)} classes. Measure on more data."
        )
