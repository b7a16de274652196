"""The arrays of a run: sorted margins at the end of training, and the picture of the collapse."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from guided_collapse.report.epochs import SPLITS, Floats, Integers, Split
from guided_collapse.report.fields import RecordError


@dataclass(frozen=True, eq=False)
class Trace:
    """A few chosen classes in the space of their own frame, measurement by measurement.

    Attributes:
        epochs: (num_frames,).
        classes: (num_shown,), indices of the chosen classes.
        weights: (num_frames, num_shown, 3), the classifier's rows.
        means: (num_frames, num_shown, 3), the class means.
        samples: (num_frames, num_samples, 3), features of fixed samples.
        sample_labels: (num_samples,), which of the chosen classes each sample has.
    """

    epochs: Integers
    classes: Integers
    weights: Floats
    means: Floats
    samples: Floats
    sample_labels: Integers


def read_margins(path: Path) -> dict[Split, Floats]:
    """Sorted cosine margins by split; none if there is no file.

    Raises:
        RecordError: for a file that cannot be read, or that holds no margins.
    """
    if not path.exists():
        return {}
    arrays = _read_npz(path)
    margins: dict[Split, Floats] = {}
    for split in SPLITS:
        if split in arrays:
            values = _finite(arrays, split, path.name)
            if values.ndim != 1 or len(values) == 0:
                raise RecordError(f"{split} of {path.name} must be (num_samples,); got {values.shape}")
            margins[split] = np.sort(values)
    return margins


def read_trace(path: Path) -> Trace | None:
    """The picture of the collapse; None if there is no file.

    Raises:
        RecordError: for a file that cannot be read, or whose arrays do not fit together.
    """
    if not path.exists():
        return None
    arrays = _read_npz(path)
    lacking = [name for name in Trace.__annotations__ if name not in arrays]
    if lacking:
        raise RecordError(f"{path.name} lacks {', '.join(lacking)}")
    trace = Trace(
        epochs=_whole(arrays, "epochs", path.name),
        classes=_whole(arrays, "classes", path.name),
        weights=_finite(arrays, "weights", path.name),
        means=_finite(arrays, "means", path.name),
        samples=_finite(arrays, "samples", path.name),
        sample_labels=_whole(arrays, "sample_labels", path.name),
    )
    frames, shown, samples = len(trace.epochs), len(trace.classes), len(trace.sample_labels)
    shapes = {"weights": (frames, shown, 3), "means": (frames, shown, 3), "samples": (frames, samples, 3)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape or 0 in shape:
            raise RecordError(f"{name} of {path.name} must be {shape} and not empty; got {arrays[name].shape}")
    if trace.sample_labels.min() < 0 or trace.sample_labels.max() >= shown or (np.diff(trace.epochs) <= 0).any():
        raise RecordError(f"{path.name} must have increasing epochs and sample_labels in 0 ... {shown - 1}")
    return trace


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        # Never with pickles: a record must not be able to run code.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged archive can fail in any of the many layers that take it apart
        raise RecordError(f"{path.name} cannot be read: {error}") from error


def _finite(arrays: dict[str, npt.NDArray[Any]], name: str, file: str) -> Floats:
    values = arrays[name]
    if not np.issubdtype(values.dtype, np.floating) or not np.isfinite(values).all():
        raise RecordError(f"{name} of {file} must be finite numbers")
    return values.astype(np.float64)


def _whole(arrays: dict[str, npt.NDArray[Any]], name: str, file: str) -> Integers:
    values = arrays[name]
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise RecordError(f"{name} of {file} must be whole numbers in one dimension; got {values.dtype} {values.shape}")
    return values.astype(np.int64)
