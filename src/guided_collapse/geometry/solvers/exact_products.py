"""Matrix products in the full precision of float32, also where TF32 or bfloat16 is allowed in its place."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry.registration import constant_in_graphs


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which operations on the device keep the dtype they are given."""
    # Not every device has autocast, nor does `torch.autocast` take those that have none.
    at_work = _has_autocast(device.type) and torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if at_work else nullcontext()


@constant_in_graphs
def _has_autocast(device_type: str) -> bool:
    """Whether devices of that kind have autocast; the compiler of torch 2.6 stops at the question."""
    return torch.amp.is_autocast_available(device_type)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right."""
    if left.dtype != torch.float32 or float32_is_float32():
        return torch.mm(left, right)
    # torch's compiler refuses the same tensor twice.
    result: Tensor = _ProductOfParts.apply(left, right.clone() if right is left else right)  # type: ignore[no-untyped-call]
    return result


def add_product(beta: float, summand: Tensor, alpha: float, left: Tensor, right: Tensor) -> Tensor:
    """beta summand + alpha left @ right."""
    if left.dtype != torch.float32 or float32_is_float32():
        return torch.addmm(summand, left, right, beta=beta, alpha=alpha)
    return beta * summand + alpha * product(left, right)


@constant_in_graphs
def float32_is_float32() -> bool:
    """Whether products of float32 matrices are computed in float32 (see `torch.set_float32_matmul_precision`)."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:
        # Torch refuses to answer where the newer switches, one for each backend, have been set to less.
        return False


class _ProductOfParts(torch.autograd.Function):
    """The product of matrices that are split into parts of eight binary digits each, which every switch leaves as they are.

    The switches belong to the user and stay as they are, also in the backward pass. There is no forward mode here: torch's compiler
    refuses functions that have one.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> Tensor:
        (first, second, third), (above, middle, below) = _parts(left), _parts(right)
        small = torch.mm(first, below) + torch.mm(second, middle) + torch.mm(third, above)
        return torch.mm(first, above) + (torch.mm(first, middle) + torch.mm(second, above) + small)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return product(grad, right.T), product(left.T, grad)


def _parts(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three matrices of bfloat16 numbers, in float32, whose sum is the matrix."""
    first = matrix.to(torch.bfloat16).to(matrix.dtype)
    rest = matrix - first
    second = rest.to(torch.bfloat16).to(matrix.dtype)
    return first, second, rest - second
