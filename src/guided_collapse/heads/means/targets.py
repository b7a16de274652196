"""What labels say of samples: the class of each, none for those that are left out, or shares of several classes."""

import torch
from torch import Tensor

LABEL_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

LEFT_OUT = -100
"""The label of samples that are left out of all means: what torch's cross-entropy leaves out by default (`ignore_index`)."""

# What rounding may add to a row's sum; in half precision it is four units in the last place.
SUM_TOLERANCE = 1e-3


def is_soft(labels: Tensor) -> bool:
    """Whether labels are shares of classes, (..., num_classes), and not class indices."""
    return labels.is_floating_point()


def check_label_shapes(labels: Tensor, features: Tensor, num_classes: int) -> None:
    """Refuses labels that are neither an index nor shares of all classes for each row of the features, (..., feature_dim).

    Raises:
        ValueError: with the requirement and what was received.
    """
    samples, given = tuple(features.shape[:-1]), tuple(labels.shape)
    if is_soft(labels) and labels.ndim == features.ndim:
        if given != (*samples, num_classes):
            raise ValueError(
                f"soft labels must be (..., num_classes) = {(*samples, num_classes)}, a row for each row of features; got {given}."
            )
        return
    if labels.dtype not in LABEL_TYPES:
        raise ValueError(
            f"labels must be class indices, int8 to int64 or uint8; got {labels.dtype}. Use labels.long(), or for soft labels "
            f"floating-point rows of {num_classes} shares."
        )
    if given != samples:
        name = "(num_samples,)" if features.ndim == 2 else "features.shape[:-1]"
        raise ValueError(
            f"labels must be {name} = {samples}, one for each row of features; got {given}. "
            "Turn one-hot labels to floating-point, or use labels.argmax(dim=-1)."
        )


def look_at_labels(labels: Tensor, num_classes: int) -> None:
    """Refuses indices out of range, and soft labels that are no shares; waits for the device.

    Raises:
        ValueError: with the requirement and what was received.
    """
    if labels.numel() == 0:
        return
    if is_soft(labels):
        _look_at_shares(labels)
        return
    known = labels[labels != LEFT_OUT]
    if known.numel() > 0 and not 0 <= int(known.min()) <= int(known.max()) < num_classes:
        raise ValueError(
            f"labels must be in 0 ... num_classes - 1 = {num_classes - 1}; "
            f"got values from {int(known.min())} to {int(known.max())}. Give samples that are to be left out the label {LEFT_OUT}."
        )


def _look_at_shares(labels: Tensor) -> None:
    tolerance = max(SUM_TOLERANCE, 4 * torch.finfo(labels.dtype).eps)
    sums = labels.sum(dim=-1, dtype=torch.promote_types(labels.dtype, torch.float32))
    lowest, smallest, largest = float(labels.min()), float(sums.min()), float(sums.max())
    # In these words, NaN is refused too.
    if not (lowest >= -tolerance and smallest >= 1 - tolerance and largest <= 1 + tolerance):
        raise ValueError(
            "soft labels must be shares of classes that exclude each other: none negative, and each row with the sum 1; "
            f"got values from {lowest:.4g} on and sums from {smallest:.4g} to {largest:.4g}. Divide each row by its sum if shares "
            "are meant. For multi-hot labels, with several classes at once or none, there is no frame to follow: "
            "use CosineHead(...)(features) without labels, and a loss that takes each class on its own."
        )


def flat_labels(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Labels for features of shape (num_samples, feature_dim), whatever leading dimensions they have.

    Args:
        labels: (...), class indices, or (..., num_classes), soft.
        dtype: what soft labels are turned to.

    Returns:
        (num_samples,), int64, or (num_samples, num_classes).
    """
    return labels.flatten(0, -2).to(dtype) if is_soft(labels) else labels.flatten().to(torch.int64)
