"""Features that another model computed, in .npz or .safetensors files."""

from pathlib import Path

import torch
from torch import Tensor

from guided_collapse.experiments.data.split import ImageData, Split, hold_out
from guided_collapse.metrics.measure import read_arrays


def load_features(file: Path, test_file: str | None = None, *, test_fraction: float = 0.2) -> ImageData:
    """The features and labels in a file, as `measure_collapse` reads them.

    Args:
        file: with the arrays features, (num_samples, width), and labels, (num_samples,).
        test_file: the same for testing; None takes test_features and test_labels in `file`, or else holds samples out.
        test_fraction: fraction of the samples of every class to hold out, always the same ones.

    Raises:
        ValueError: for files, types, sizes or values that do not fit.
    """
    arrays = read_arrays(file)
    train = _split(arrays["features"], arrays["labels"], where=f"{file}")
    if test_file is not None:
        found = read_arrays(Path(test_file))
        test = _split(found["features"], found["labels"], where=test_file)
    elif "test_features" in arrays or "test_labels" in arrays:
        if missing := [name for name in ("test_features", "test_labels") if name not in arrays]:
            raise ValueError(f"{file} must hold both test_features and test_labels, or neither; it lacks {missing[0]}.")
        test = _split(arrays["test_features"], arrays["test_labels"], where=f"{file}, test_features")
    else:
        try:
            parts = hold_out(train.labels, round(test_fraction * len(train)), seed=0)
        except ValueError as error:
            raise ValueError(
                f"{file} has no test features, and holding samples out failed: {error} Add --test-features."
            ) from error
        train, test = train.take(parts.train), train.take(parts.test)
    widths, num_classes = [split.images.shape[1] for split in (train, test)], int(train.labels.max()) + 1  # type: ignore[union-attr]
    if widths[0] != widths[1]:
        raise ValueError(f"features for training and testing must have the same width; got {widths[0]} and {widths[1]}.")
    if missing_classes := (train.labels.bincount(minlength=num_classes) == 0).nonzero().flatten().tolist():
        raise ValueError(
            f"labels must be 0 ... num_classes - 1, with a training sample of every class; {file} has none of class "
            f"{missing_classes[0]}, and labels up to {num_classes - 1}. Number the classes without gaps."
        )
    if num_classes < 2:
        raise ValueError(f"labels must be of at least two classes; {file} has only class 0.")
    return ImageData(file.stem, train, test, tuple(map(str, range(num_classes))), file)


def _split(features: Tensor, labels: Tensor, *, where: str) -> Split:
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels) or features.shape[1] < 2:
        raise ValueError(
            "features must be (num_samples, width) with a width of at least 2, and labels (num_samples,); "
            f"got {tuple(features.shape)} and {tuple(labels.shape)} in {where}."
        )
    broken = (~features.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if broken:
        raise ValueError(f"features must be finite; {where} has NaN or infinity in {len(broken)} rows, the first is {broken[0]}.")
    return Split(features.to(torch.float32), labels.to(torch.int64))


def feature_statistics(features: Tensor) -> tuple[Tensor, float]:
    """Mean, (width,), and root mean square deviation from it over all dimensions, 1 if all features are equal.

    A single factor keeps the shape of the feature space, which heads on spheres depend on.
    """
    mean = features.double().mean(dim=0)
    std = float((features - mean).square().mean().sqrt())
    return mean.float(), std if std > 0 else 1.0
