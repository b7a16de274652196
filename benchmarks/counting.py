"""Measures peak memory, and counts device operations, for which no device is needed."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from guided_collapse.geometry.operations import IMPLEMENTATIONS

# Operations that return values, or shapes that depend on values, to the host: they synchronize with the device.
WAITING = frozenset(
    {
        *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"),
        *("nonzero", "nonzero_numpy", "masked_select", "bincount", "unique_dim", "_unique2", "unique_consecutive"),
    }
)
# Prefixes of the names of factorizations.
FACTORIZATIONS = (
    *("linalg_eig", "linalg_svd", "linalg_qr", "linalg_cholesky", "linalg_lu", "linalg_inv", "linalg_ldl", "geqrf"),
    *("_linalg_eig", "_linalg_svd", "_linalg_solve", "_linalg_det", "_linalg_slogdet", "cholesky"),
)


class WholeStep(TorchDispatchMode):
    """Calls `seen` after every tensor operation, including those inside custom operations, which FlopCounterMode cannot see."""

    def seen(self, name: str, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Receives each finished operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ours = IMPLEMENTATIONS.get(func)
        if ours is not None:
            with self:
                return ours(*args, **kwargs)
        result = func(*args, **kwargs)
        self.seen(func.name().removeprefix("aten::").split(".")[0], func, args, kwargs, result)
        return result


@dataclass
class OperationCounts:
    """Counts of device operations."""

    operations: int = 0
    """Operations other than views."""
    waits: int = 0
    """Synchronizations with the device."""
    double_precision: int = 0
    """Operations with a float64 tensor."""
    factorizations: int = 0
    """Eigendecompositions, SVDs, QR, Cholesky and similar."""
    work: int = 0
    """Floating-point operations of matrix products and convolutions, by the formulas of FlopCounterMode."""
    moved_bytes: int = 0
    """Bytes read and written, without fusion."""


class CountOperations(WholeStep):
    """Counts the operations inside its context, in `counts`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = OperationCounts()

    def seen(self, name: str, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        counts = self.counts
        counts.waits += name in WAITING
        tensors = list(_tensors((args, kwargs, result)))
        if operation.is_view or not tensors:
            return
        counts.operations += 1
        counts.double_precision += any(tensor.dtype == torch.float64 for tensor in tensors)
        counts.factorizations += name.startswith(FACTORIZATIONS)
        counts.moved_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        # An in-place variant does the same work as its operation, but only the operation is registered.
        formula = flop_registry.get(getattr(torch.ops.aten, name.removesuffix("_"), operation.overloadpacket))
        if formula is not None:
            counts.work += formula(*args, **kwargs, out_val=result)


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))


def start_counting_memory(device: torch.device) -> float:
    """Resets the peak of `peak_mb` and returns the MB in use: of torch tensors on a GPU, otherwise of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 1e6
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _resident_mb("VmRSS")
    except OSError:  # not Linux, or not permitted: only the peak so far is known
        return peak_mb(device)


def peak_mb(device: torch.device) -> float:
    """Returns the peak MB since `start_counting_memory`, or since the start of the process if the peak cannot be reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        return _resident_mb("VmHWM")
    except OSError:
        import resource  # not available on every system

        # In KiB, except on macOS, which reports bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def _resident_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"the operating system does not report {name}")
