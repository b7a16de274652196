"""The arrays of a run, read and checked: sorted margins at the end of training, and what the animation shows."""

import io
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.records.contents import check_size, read_bytes
from guided_collapse.experiments.records.fields import LARGEST, RecordError
from guided_collapse.experiments.records.schema import SPLITS, Floats, Integers, Split, Trace


def read_margins(path: Path) -> dict[Split, Floats]:
    """Sorted cosine margins by split; none if there is no file.

    Raises:
        RecordError: for a file that cannot be read, or that holds no margins.
    """
    arrays = _read_npz(path, SPLITS)
    margins: dict[Split, Floats] = {}
    for split in SPLITS:
        if arrays is not None and split in arrays:
            values = _finite(arrays, split, path.name)
            if values.ndim != 1 or len(values) == 0:
                raise RecordError(f"{split} of {path.name} must be (num_samples,); got {values.shape}")
            margins[split] = np.sort(values)
    return margins


def read_trace(path: Path) -> Trace | None:
    """What the animation shows; None if there is no file.

    Raises:
        RecordError: for a file that cannot be read, or whose arrays do not fit together.
    """
    kinds = get_type_hints(Trace)
    arrays = _read_npz(path, kinds)
    if arrays is None:
        return None
    lacking = [name for name in kinds if name not in arrays]
    if lacking:
        raise RecordError(f"{path.name} lacks {', '.join(lacking)}")
    trace = Trace(**{name: _take(kind)(arrays, name, path.name) for name, kind in kinds.items()})
    for name, shape in trace.shapes().items():
        if arrays[name].shape != shape or 0 in shape:
            raise RecordError(f"{name} of {path.name} must be {shape} and not empty; got {arrays[name].shape}")
    shown = len(trace.classes)
    if trace.sample_labels.min() < 0 or trace.sample_labels.max() >= shown or (np.diff(trace.epochs) <= 0).any():
        raise RecordError(f"{path.name} must have increasing epochs, and labels of samples in 0 ... {shown - 1}")
    return trace


def _read_npz(path: Path, names: Iterable[str]) -> dict[str, npt.NDArray[Any]] | None:
    """Those of the named arrays that a file holds; None if there is no file."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = {name: archive.getinfo(f"{name}.npy") for name in names if f"{name}.npy" in archive.namelist()}
            check_size(path, sum(info.file_size for info in found.values()))
            return {name: _read_array(archive, info) for name, info in found.items()}
    except RecordError:
        raise
    except Exception as error:  # a damaged archive can fail in any of the many layers that take it apart
        raise RecordError(f"{path.name} cannot be read: {error}") from error


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[Any]:
    with archive.open(info) as file:
        # Never with pickles: a record must not be able to run code.
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _take(kind: object) -> Callable[[dict[str, npt.NDArray[Any]], str, str], npt.NDArray[Any]]:
    return _whole if kind == Integers else _finite


def _finite(arrays: dict[str, npt.NDArray[Any]], name: str, file: str) -> Floats:
    is_floating = np.issubdtype(arrays[name].dtype, np.floating)
    with np.errstate(over="ignore"):
        values = arrays[name].astype(np.float64) if is_floating else np.full(1, np.nan)
    if not (np.abs(values) <= LARGEST).all():
        raise RecordError(f"{name} of {file} must be finite numbers of at most {LARGEST:g}")
    return values


def _whole(arrays: dict[str, npt.NDArray[Any]], name: str, file: str) -> Integers:
    values = arrays[name]
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise RecordError(f"{name} of {file} must be whole numbers in one dimension; got {values.dtype} {values.shape}")
    return values.astype(np.int64)
