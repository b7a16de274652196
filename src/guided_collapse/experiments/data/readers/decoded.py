"""Decoded images, kept beside the files that they come from."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.records.files import written_whole

Arrays = Mapping[str, npt.NDArray[np.generic]]
STAMP = "stamp"


def decoded(path: Path, sources: Sequence[Path], build: Callable[[], Arrays], *, variant: str = "") -> Arrays:
    """The arrays of an .npz file if it was built from these very files, else those of `build`, which are then written there.

    The file is written whole or not at all. It is a convenience: one that is damaged (every array in it has a checksum) or stale is
    built again, and a folder that cannot be written to, or a full disk, only costs time.

    Args:
        path: the .npz file.
        sources: the files that the arrays come from; their names, sizes and times of change are the stamp of the .npz file.
        build: gives the arrays.
        variant: how they were built, part of the stamp too.
    """
    stamp = json.dumps([variant, *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sources)])
    arrays = _read(path, stamp)
    if arrays is None:
        arrays = build()
        _write(path, {**arrays, STAMP: np.array(stamp)})
    return arrays


def _read(path: Path, stamp: str) -> Arrays | None:
    if not path.is_file():  # reading a pipe would wait for ever
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if str(archive[STAMP]) != stamp:
                return None
            return {name: archive[name] for name in archive.files if name != STAMP}
    except Exception:  # a damaged archive can fail in any of the many layers that take it apart; it is built again
        return None


def _write(path: Path, arrays: Arrays) -> None:
    with contextlib.suppress(OSError), written_whole(path) as beside, beside.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its allow_pickle is younger than the oldest numpy allowed
