"""Rounds that end at a frame with unit rows which no small change brings nearer to a target, as a torch operation.

A pull toward a target turns a row, and changes its length. Where rows are only divided by their norms between pulls, they come to
rest uneven, and making them even afterward leads away from the target. Here each row has a scale, which takes up what the pull
does to its length. A round is

    s_i <- s_i / (|v_i| sqrt(C/d)),      V <- polar(P (s_i v_i / |v_i| + pull t_i)).

If it leaves W as it is, with unit rows, then pull T = W S - diag(s) W + 1 m' for some m and a symmetric S. These are the
conditions for W to be stationary for <W, T> among all tight frames with unit rows that sum to zero, whatever the pull: the
scales are multipliers of the norms.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.registration import operation
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.solvers.exact_products import without_autocast
from guided_collapse.geometry.tight.rounds import (
    Orthonormalized,
    orthonormalize,
    orthonormalize_gradient,
    refuse_second_derivatives,
)

# How far a round goes toward the target, whose rows have norm 1 in the mean as those of the frame have. Less is slow, and with
# twice as much the scales take long to settle.
SETTLING_PULL = 1.0

# Of so many rounds, all frames are held at once for the gradient; of the others one in so many.
ROUNDS_AT_ONCE = 8


def settle(columns: Tensor, target: Tensor, *, rounds: int, centered: bool) -> Tensor:
    """Orthonormal columns that come nearer to even rows and to the target at once, differentiable once.

    Args:
        columns: V to start from, (num_classes, num_columns), float32 or float64, no row zero.
        target: T, of the same shape and dtype.
        rounds: how many.
        centered: whether V is centered and shall stay so.

    Returns:
        (num_classes, num_columns).
    """
    scales = columns.new_ones(len(columns))
    for start in range(0, rounds, ROUNDS_AT_ONCE):
        columns, scales = _settle(columns, scales, target, min(ROUNDS_AT_ONCE, rounds - start), centered)
    return columns


def next_scales(scales: Tensor, norms: Tensor, *, num_columns: int) -> Tensor:
    """The scales s, (num_classes,), once the norms of rows of orthonormal columns are known, (num_classes,)."""
    return scales / (norms * math.sqrt(len(norms) / num_columns))


class _Round(NamedTuple):
    """What the gradient of a round takes."""

    columns: Tensor
    """V before, (num_classes, num_columns)."""
    norms: Tensor
    """|v|, (num_classes,)."""
    scales: Tensor
    """s of the round, (num_classes,)."""
    found: Orthonormalized
    """V after, and the root."""


def _round(columns: Tensor, scales: Tensor, target: Tensor, centered: bool) -> _Round:
    norms = torch.linalg.vector_norm(columns, dim=1)
    scales = next_scales(scales, norms, num_columns=columns.shape[1])
    rows = torch.addcmul(SETTLING_PULL * target, columns, (scales / norms)[:, None])
    return _Round(columns, norms, scales, orthonormalize(center_classes(rows) if centered else rows))


@operation("settle")
def _settle(columns: Tensor, scales: Tensor, target: Tensor, rounds: int, centered: bool) -> tuple[Tensor, Tensor]:
    with without_autocast(columns.device):
        for _ in range(rounds):
            _, _, scales, (columns, _) = _round(columns, scales, target, centered)
        return columns, scales


@_settle.register_fake
def _(columns: Tensor, scales: Tensor, target: Tensor, rounds: int, centered: bool) -> tuple[Tensor, Tensor]:
    return columns.new_empty(columns.shape), scales.new_empty(scales.shape)


@operation("settle_backward")
def _settle_backward(
    grad: Tensor, grad_scales: Tensor, columns: Tensor, scales: Tensor, target: Tensor, rounds: int, centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    with without_autocast(grad.device):
        # They are run again. Run backwards, as those of `alternate` are, they would double rounding errors with each round.
        done: list[_Round] = []
        for _ in range(rounds):
            done.append(_round(columns, scales, target, centered))
            scales, columns = done[-1].scales, done[-1].found.columns
        grad_target = torch.zeros_like(target, memory_format=torch.contiguous_format)
        while done:
            before, norms, scales, found = done.pop()
            unit = before / norms[:, None]
            grad = orthonormalize_gradient(grad, found)
            if centered:
                center_classes(grad, out=grad)
            grad_target.add_(grad, alpha=SETTLING_PULL)
            along = (grad * unit).sum(dim=1)
            grad_scales = grad_scales + along
            # What turns the row, and what changes its norm, on which the scale depends.
            turning = (grad - along[:, None] * unit) * scales[:, None]
            grad = (turning - (grad_scales * scales)[:, None] * unit) / norms[:, None]
            grad_scales = next_scales(grad_scales, norms, num_columns=unit.shape[1])
        return grad, grad_scales, grad_target


@_settle_backward.register_fake
def _(
    grad: Tensor, grad_scales: Tensor, columns: Tensor, scales: Tensor, target: Tensor, rounds: int, centered: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return columns.new_empty(columns.shape), scales.new_empty(scales.shape), columns.new_empty(columns.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    columns, scales, target, ctx.rounds, ctx.centered = inputs
    ctx.save_for_backward(columns, scales, target)


def _gradient(ctx: Any, grad: Tensor, grad_scales: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    columns, scales, target = ctx.saved_tensors
    return *_settle_backward(grad, grad_scales, columns, scales, target, ctx.rounds, ctx.centered), None, None


_settle.register_autograd(_gradient, setup_context=_remember)
_settle_backward.register_autograd(refuse_second_derivatives)
