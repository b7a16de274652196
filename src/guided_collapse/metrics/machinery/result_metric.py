"""A torchmetrics metric whose result is a `CollapseResult` and whose state keeps its precision."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from guided_collapse.metrics.formulas.double_precision import has_float64
from guided_collapse.metrics.result import CollapseResult


class Opaque:
    """A result that torchmetrics does not look into: it takes dataclasses apart and fails on those it cannot write to."""

    def __init__(self, result: CollapseResult) -> None:
        self.result = result


class ResultMetric(Metric):
    """What the metrics of a stream have in common. State is moved to other devices, and stays in float64 whatever else is asked.

    On a device without float64 it stays on the CPU, and features come there to be taken in.
    """

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """The same as `update`: a single batch has no result of its own."""
        self.update(*args, **kwargs)

    def _wrap_compute(self, compute: Callable[[], CollapseResult]) -> Callable[[], CollapseResult]:
        """Adds caching and the exchange between processes, which get to see the result only as an opaque object."""
        wrapped = super()._wrap_compute(lambda: Opaque(compute()))

        def unwrapping() -> CollapseResult:
            return wrapped().result

        return unwrapping

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """What `to`, `half` and `set_dtype` come down to. Sums of squares in another type than float64 would be worth nothing."""

        def keeping_type(tensor: Tensor) -> Tensor:
            # Where it would go, asked with a type that every device has.
            if not has_float64(fn(torch.empty(0, dtype=torch.int64, device=tensor.device)).device):
                return tensor.cpu()
            changed = fn(tensor)
            return changed if changed.dtype == tensor.dtype else tensor.to(changed.device)

        super()._apply(keeping_type, exclude_state)
        return self
