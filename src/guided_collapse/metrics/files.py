"""Features, labels and a classifier from a file."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from guided_collapse.lazy import optional

NAMES = ("features", "labels", "weight", "bias", "test_features", "test_labels")


class Arrays(NamedTuple):
    """What `measure_collapse` takes, as read from a file."""

    features: Tensor
    labels: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    test_features: Tensor | None = None
    test_labels: Tensor | None = None


def read_arrays(path: Path) -> Arrays:
    """The arrays of an `.npz` or `.safetensors` file; others than those of `Arrays` are passed over.

    Raises:
        ValueError: for a file that is missing, unreadable or incomplete, or of another kind.
    """
    try:
        found = path.is_file()
    except OSError as error:
        raise ValueError(f"FILE must be an .npz or .safetensors file; {path} cannot be looked at: {error}") from error
    if not found:
        raise ValueError(f"FILE must be an .npz or .safetensors file; there is no file {path}.")
    if path.suffix == ".npz":
        tensors = _read_npz(path)
    elif path.suffix == ".safetensors":
        tensors = _read_safetensors(path)
    else:
        raise ValueError(f"FILE must end in .npz or .safetensors; got {path.name}. Save it with numpy.savez or safetensors.")
    lacking = [name for name in ("features", "labels") if name not in tensors]
    if lacking:
        held = ", ".join(tensors) or "none that are known"
        raise ValueError(f"{path} must hold features and labels; it lacks {' and '.join(lacking)} and holds {held}.")
    return Arrays(**tensors)


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        # Never with pickles: a file of numbers must not be able to run code.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: torch.as_tensor(archive[name]) for name in NAMES if name in archive}
    except Exception as error:  # a damaged archive can fail in any of the many layers that take it apart
        raise ValueError(f"{path} must be a readable .npz file of plain numbers; reading it failed: {error}") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = optional("safetensors", extra="experiments")
    try:
        with safetensors.safe_open(path, framework="pt") as archive:
            return {name: archive.get_tensor(name) for name in NAMES if name in archive.keys()}  # noqa: SIM118
    except (OSError, RuntimeError, NotImplementedError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} must be a readable .safetensors file; reading it failed: {error}") from error
