"""What a training step asks of a device: operations, waits, float64, floating-point work and bytes, counted on any machine."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from guided_collapse.geometry.registration import IMPLEMENTATIONS

# These give the host a value of the device's, or a shape that depends on one: it has to wait until the device comes to it.
WAITING = frozenset(
    {
        *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"),
        *("nonzero", "nonzero_numpy", "masked_select", "bincount", "unique_dim", "_unique2", "unique_consecutive"),
    }
)
# What their names begin with.
FACTORIZATIONS = (
    *("linalg_eig", "linalg_svd", "linalg_qr", "linalg_cholesky", "linalg_lu", "linalg_inv", "linalg_ldl", "geqrf"),
    *("_linalg_eig", "_linalg_svd", "_linalg_solve", "_linalg_det", "_linalg_slogdet", "cholesky"),
)


class WholeStep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls `seen` for every operation on tensors, those inside our own operations too."""

    def seen(self, name: str, operation: Any, given: Sequence[Any], options: Mapping[str, Any], result: Any) -> None:
        """Is told of each operation after it was done."""

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Does the operation."""
        options = kwargs or {}
        ours: Callable[..., Any] | None = IMPLEMENTATIONS.get(func)
        if ours is not None:
            with self:
                return ours(*args, **options)
        result = func(*args, **options)
        self.seen(func.name().removeprefix("aten::").split(".")[0], func, args, options, result)
        return result


@dataclass
class OperationCounts:
    """What was asked of a device."""

    operations: int = 0
    """Operations that compute something; those that only look at a tensor in another way do not count."""
    waits: int = 0
    """How often the host waits for a value."""
    double_precision: int = 0
    """Operations with a float64 tensor."""
    factorizations: int = 0
    """Eigenvalues, singular values, QR, Cholesky and the like."""
    work: int = 0
    """Floating-point operations of matrix products and convolutions."""
    moved_bytes: int = 0
    """Bytes that operations read and write if nothing is fused."""


class CountOperations(WholeStep):  # type: ignore[no-untyped-call]
    """Counts the operations inside its context, in `counts`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = OperationCounts()

    def seen(self, name: str, operation: Any, given: Sequence[Any], options: Mapping[str, Any], result: Any) -> None:
        """Counts one operation."""
        counts = self.counts
        if name in WAITING:
            counts.waits += 1
        tensors = list(_tensors((given, options, result)))
        if operation.is_view or not tensors:
            return
        counts.operations += 1
        counts.double_precision += any(tensor.dtype == torch.float64 for tensor in tensors)
        counts.factorizations += name.startswith(FACTORIZATIONS)
        counts.moved_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        formula = flop_registry.get(operation.overloadpacket)
        if formula is not None:
            counts.work += formula(*given, **options, out_val=result)


def _tensors(values: Any) -> Iterator[Tensor]:
    return (value for value in tree_leaves(values) if isinstance(value, Tensor))
