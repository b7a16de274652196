"""State as it was before a step changes it, and state that keeps its precision."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn


def snapshot(state: Tensor) -> Tensor:
    """A differentiable copy of a buffer or parameter that a forward pass both reads for the backward pass and writes to.

    A plain clone is not enough: torch.compile may read the buffer again in the backward pass instead of keeping the clone, and
    finds it changed, without notice (pytorch/pytorch pull request 197039). It does not look into a registered operation.
    """
    return _snapshot(state)


@torch.library.custom_op("guided_collapse::snapshot", mutates_args=())
def _snapshot(state: Tensor) -> Tensor:
    return state.clone()


@_snapshot.register_fake
def _(state: Tensor) -> Tensor:
    return torch.empty_like(state)


def _pass_gradient(ctx: Any, grad: Tensor) -> Tensor:
    return grad


_snapshot.register_autograd(_pass_gradient)


class SinglePrecisionState(nn.Module):
    """A module whose own buffers stay in float32 when a model is turned to half precision.

    Running statistics take in a small share of each batch, which half precision would round away, and the rows of a frame would
    not be orthogonal any more.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def kept(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            if tensor.is_floating_point() and converted.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(converted.device)
            return converted

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call]
