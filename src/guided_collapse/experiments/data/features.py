"""Features that another model computed, in .npz or .safetensors files."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from guided_collapse.experiments.data.known import check_source
from guided_collapse.experiments.data.split import ImageData, Split, hold_out_fraction
from guided_collapse.metrics.measure import read_arrays

CLASS_NAMES = "class_names"  # an array in .npz files, a JSON list in the metadata of .safetensors files


def load_features(file: Path, test_file: Path | None = None, *, test_fraction: float = 0.2) -> ImageData:
    """Loads the features and labels in a file that `read_arrays` can read. Without class names, classes are named by number.

    Args:
        file: holds the arrays features, (num_samples, width), and labels, (num_samples,).
        test_file: a file with test samples in arrays of the same names; if None, test samples are test_features and test_labels in
            `file` or, if it has neither, held-out samples.
        test_fraction: fraction of the samples of every class to hold out, always the same ones.

    Raises:
        ValueError: for unreadable files, or arrays with invalid types, shapes or values.
    """
    arrays = read_arrays(file)
    train = _split(arrays["features"], arrays["labels"], where=f"{file}")
    names = _class_names(file)
    num_classes = len(names) if names else int(train.labels.max()) + 1
    _check_classes(train.labels, num_classes, where=f"{file}")
    if test_file is not None:
        check_source(f"{test_file}")
        found = read_arrays(test_file)
        test = _split(found["features"], found["labels"], where=f"{test_file}")
    elif "test_features" in arrays or "test_labels" in arrays:
        if missing := [name for name in ("test_features", "test_labels") if name not in arrays]:
            raise ValueError(f"{file} must hold both test_features and test_labels, or neither; it lacks {missing[0]}.")
        test = _split(arrays["test_features"], arrays["test_labels"], where=f"{file}, test_features")
    else:
        try:
            parts = hold_out_fraction(train.labels, test_fraction, seed=0)
        except ValueError as error:
            raise ValueError(
                f"{file} has no test features, and holding samples out failed: {error} Add --test-features."
            ) from error
        train, test = train.take(parts.train), train.take(parts.test)
    widths = [cast(Tensor, split.images).shape[1] for split in (train, test)]
    if widths[0] != widths[1]:
        raise ValueError(f"features for training and testing must have the same width; got {widths[0]} and {widths[1]}.")
    if (highest := int(test.labels.max())) >= num_classes:
        raise ValueError(
            f"test labels must be those of classes with training samples, 0 ... {num_classes - 1}; got {highest}. "
            "Leave out the samples of other classes."
        )
    return ImageData(file.stem, train, test, names or tuple(map(str, range(num_classes))), file)


def as_file(arrays: dict[str, Tensor], class_names: tuple[str, ...], suffix: str) -> bytes:
    """Returns the contents of a file with these arrays and class names, as `load_features` reads it."""
    if suffix == ".safetensors":
        tensors = {name: array.contiguous() for name, array in arrays.items()}
        return save(tensors, metadata={CLASS_NAMES: json.dumps(class_names)})
    content, named = BytesIO(), {name: array.numpy() for name, array in arrays.items()} | {CLASS_NAMES: np.array(class_names)}
    np.savez(content, **cast(dict[str, Any], named))
    return content.getvalue()


def feature_statistics(features: Tensor) -> tuple[Tensor, float]:
    """Returns the mean, (width,), and the RMS deviation from it over all dimensions; raises ValueError if all features are equal.

    A single factor preserves the shape of the feature space, which heads on spheres depend on.
    """
    mean = features.double().mean(dim=0)
    std = float((features - mean).square().mean().sqrt())
    if std == 0:
        raise ValueError("features must differ between samples; all of them are equal. Check the model that computed them.")
    return mean.float(), std


def _split(features: Tensor, labels: Tensor, *, where: str) -> Split:
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels) or len(features) == 0 or features.shape[1] < 2:
        raise ValueError(
            "features must be (num_samples, width) with at least one sample and a width of at least 2, and labels (num_samples,); "
            f"got {tuple(features.shape)} and {tuple(labels.shape)} in {where}."
        )
    features, labels = features.to(torch.float32), labels.to(torch.int64)
    if broken := (~features.isfinite().all(dim=1)).nonzero().flatten().tolist():
        raise ValueError(
            f"features must be finite in float32; row {broken[0]} of {where} has NaN or infinity, one of {len(broken)} such rows. "
            "Leave them out, or compute them again."
        )
    if int(labels.min()) < 0:
        raise ValueError(f"labels must be class indices from 0; got {int(labels.min())} in {where}.")
    return Split(features, labels)


def _check_classes(labels: Tensor, num_classes: int, *, where: str) -> None:
    present = np.unique(labels.numpy()).tolist()
    if num_classes > 1 and present == list(range(min(num_classes, len(present) + 1))):
        return
    gap = next((label for label, found in enumerate(present) if label != found), len(present))
    raise ValueError(
        f"labels must be 0 ... num_classes - 1, of at least two classes, with a training sample of each; {where} has labels up to "
        f"{present[-1]}, and none of class {gap}. Number the classes without gaps."
    )


def _class_names(file: Path) -> tuple[str, ...] | None:
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as opened:
            found = json.loads((opened.metadata() or {}).get(CLASS_NAMES, "null"))
    else:
        with np.load(file) as arrays:
            found = arrays[CLASS_NAMES].tolist() if CLASS_NAMES in arrays else None
    if found is not None and not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        raise ValueError(f"{CLASS_NAMES} must be a list of names, one for each class; got {found!r:.100} in {file}.")
    return tuple(found) if found else None
