"""State as it was before a step changes it."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry.operations import operation


def snapshot(state: Tensor) -> Tensor:
    """A differentiable copy of a buffer or parameter that a forward pass both reads for the backward pass and writes to.

    In a compiled graph a plain clone is not enough: torch.compile may read the buffer again in the backward pass instead of keeping
    the clone, and finds it changed, without notice (pytorch/pytorch pull request 197039). It does not look into a registered
    operation.
    """
    return _snapshot(state) if torch.compiler.is_compiling() else state.clone()


@operation("snapshot")
def _snapshot(state: Tensor) -> Tensor:
    return state.clone()


@_snapshot.register_fake
def _(state: Tensor) -> Tensor:
    return torch.empty_like(state)


def _pass_gradient(ctx: Any, grad: Tensor) -> Tensor:
    return grad


_snapshot.register_autograd(_pass_gradient)
