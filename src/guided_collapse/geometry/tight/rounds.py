"""Rounds between two demands on the same matrix, orthonormal columns and rows of equal norm, as a torch operation.

The polar factor is taken from the small Gram matrix here: what was orthonormal columns before its rows were normalized is so
well-conditioned that nothing is lost. `orthonormalize` is the one place that does it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.registration import operation, refusal_of_second_derivatives
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.solvers.exact_products import without_autocast
from guided_collapse.geometry.solvers.polar import PolarFactors, polar_gradient
from guided_collapse.geometry.tight.roots import inverse_square_root


class Orthonormalized(NamedTuple):
    """Y = V S, with V'V = I and S symmetric, positive definite."""

    columns: Tensor
    """V, (num_classes, num_columns)."""
    root: Tensor
    """S, (num_columns, num_columns), the square root of Y'Y."""


def polar_columns(matrix: Tensor) -> Tensor:
    """The polar factor of a well-conditioned matrix that stands upright, differentiable once.

    Args:
        matrix: (num_classes, num_columns), num_columns <= num_classes, float32 or float64, of full rank.

    Returns:
        (num_classes, num_columns), orthonormal columns.
    """
    return _polar_columns(matrix)[0]


def alternate(columns: Tensor, target: Tensor, fallback: Tensor, *, pulls: Sequence[float], centered: bool) -> Tensor:
    """Orthonormal columns whose rows come nearer to equal norm with each round, differentiable once.

    One round is V <- polar(P (N(V) + pull T)): N divides each row by its norm, T is the target, and P takes the mean of the rows
    away, if they are to stay centered. With a pull of 0 these are the alternating projections of Tropp, Dhillon, Heath and Strohmer
    (2005); with a positive one they are steps of projected gradient ascent on <V, T>.

    The gradient is the one through the rounds. They are run backwards for it, each from the one after it, so that what is kept of
    a round is a small matrix and a number for each row, whatever the number of rounds.

    Args:
        columns: V to start from, (num_classes, num_columns), float32 or float64.
        target: T, of the same shape and dtype.
        fallback: of the same shape and dtype, held constant: the rows that stand in for rows of V that are zero at the start.
        pulls: the pull of each round.
        centered: whether V is centered and shall stay so.

    Returns:
        (num_classes, num_columns).
    """
    return _alternate(columns, target, fallback, list(pulls), centered)[0]


def orthonormalize(matrix: Tensor) -> Orthonormalized:
    """The polar decomposition of a well-conditioned matrix that stands upright, (num_classes, num_columns)."""
    gram = matrix.T @ matrix
    inverse_root = inverse_square_root(gram)
    return Orthonormalized(matrix @ inverse_root, gram @ inverse_root)


def orthonormalize_gradient(grad: Tensor, solution: Orthonormalized) -> Tensor:
    """The gradient of what was decomposed, from that of the columns: (num_classes, num_columns) both."""
    values, rotation = torch.linalg.eigh(solution.root)
    lying = solution.columns.T
    factors = PolarFactors(rotation, values, rotation.T @ lying, torch.zeros_like(values))
    return polar_gradient(grad.T, factors, lying).T.contiguous()


@operation("polar_columns")
def _polar_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    with without_autocast(matrix.device):
        solution = orthonormalize(matrix)
        return solution.columns, solution.root


@_polar_columns.register_fake
def _(matrix: Tensor) -> tuple[Tensor, Tensor]:
    return matrix.new_empty(matrix.shape), matrix.new_empty(matrix.shape[1], matrix.shape[1])


@operation("polar_columns_backward")
def _polar_columns_backward(grad: Tensor, columns: Tensor, root: Tensor) -> Tensor:
    with without_autocast(grad.device):
        return orthonormalize_gradient(grad, Orthonormalized(columns, root))


@_polar_columns_backward.register_fake
def _(grad: Tensor, columns: Tensor, root: Tensor) -> Tensor:
    return columns.new_empty(columns.shape)


@operation("alternate")
def _alternate(
    columns: Tensor, target: Tensor, fallback: Tensor, pulls: Sequence[float], centered: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    num_classes, num_columns = columns.shape
    with without_autocast(columns.device):
        current = columns.clone(memory_format=torch.contiguous_format)
        norms = columns.new_empty(len(pulls), num_classes)
        means = columns.new_zeros(len(pulls), num_columns)
        roots = columns.new_empty(len(pulls), num_columns, num_columns)
        for index, pull in enumerate(pulls):
            norms[index] = to_unit_rows(current, fallback if index == 0 else None, num_classes=num_classes)
            if pull:
                current.add_(target, alpha=pull)
            if centered:
                means[index] = current.mean(dim=0)
                current.sub_(means[index])
            current, roots[index] = orthonormalize(current)
        return current, norms, means, roots


def to_unit_rows(rows: Tensor, fallback: Tensor | None, *, num_classes: int) -> Tensor:
    """Divides each row by its norm, in place, and returns the norms.

    Args:
        rows: rows of orthonormal columns, (num_rows, num_columns).
        fallback: of the same shape: what stands in for rows that are zero but for rounding. Their norms are infinite. None if there
            can be none.
        num_classes: how many rows the columns have in all.
    """
    norms = torch.linalg.vector_norm(rows, dim=1)
    if fallback is None:
        rows.div_(norms[:, None])
        return norms
    zero = is_zero_row(norms, num_classes=num_classes, num_columns=rows.shape[1])
    rows.div_(norms[:, None])
    torch.where(zero[:, None], torch.nn.functional.normalize(fallback, dim=1), rows, out=rows)
    return norms.masked_fill_(zero, torch.inf)


def is_zero_row(norms: Tensor, *, num_classes: int, num_columns: int) -> Tensor:
    """Which rows of orthonormal columns are zero but for rounding."""
    usual_norm = (num_columns / num_classes) ** 0.5
    return norms <= torch.finfo(norms.dtype).eps ** 0.75 * usual_norm


@_alternate.register_fake
def _(
    columns: Tensor, target: Tensor, fallback: Tensor, pulls: Sequence[float], centered: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    num_classes, num_columns = columns.shape
    return (
        columns.new_empty(columns.shape),
        columns.new_empty(len(pulls), num_classes),
        columns.new_empty(len(pulls), num_columns),
        columns.new_empty(len(pulls), num_columns, num_columns),
    )


@operation("alternate_backward")
def _alternate_backward(
    grad: Tensor,
    target: Tensor,
    columns: Tensor,
    norms: Tensor,
    means: Tensor,
    roots: Tensor,
    pulls: Sequence[float],
    centered: bool,
) -> tuple[Tensor, Tensor]:
    with without_autocast(grad.device):
        grad, current = grad.clone(memory_format=torch.contiguous_format), columns
        grad_target = torch.zeros_like(target, memory_format=torch.contiguous_format)
        for index in reversed(range(len(pulls))):
            grad = orthonormalize_gradient(grad, Orthonormalized(current, roots[index]))
            if centered:
                center_classes(grad, out=grad)
            grad_target.add_(grad, alpha=pulls[index])
            # The unit rows that the round began with.
            unit = torch.addmm(means[index], current, roots[index]).sub_(target, alpha=pulls[index])
            grad.sub_((grad * unit).sum(dim=1, keepdim=True) * unit).div_(norms[index][:, None])
            current = unit.mul_(norms[index][:, None])
        return grad, grad_target


@_alternate_backward.register_fake
def _(
    grad: Tensor,
    target: Tensor,
    columns: Tensor,
    norms: Tensor,
    means: Tensor,
    roots: Tensor,
    pulls: Sequence[float],
    centered: bool,
) -> tuple[Tensor, Tensor]:
    return columns.new_empty(columns.shape), columns.new_empty(columns.shape)


def _remember_polar(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output)


def _polar_gradient(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> Tensor | None:
    return None if grad is None else _polar_columns_backward(grad, *ctx.saved_tensors)


def _remember_rounds(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, target, _, ctx.pulls, ctx.centered = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(target, *output)


def _rounds_gradient(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    if grad is None:
        return None, None, None, None, None
    target, columns, norms, means, roots = ctx.saved_tensors
    grads = _alternate_backward(grad, target, columns, norms, means, roots, ctx.pulls, ctx.centered)
    return *grads, None, None, None


refuse_second_derivatives = refusal_of_second_derivatives(
    "the nearest frame", "Detach the frame in the part of the loss that is differentiated twice."
)
_polar_columns.register_autograd(_polar_gradient, setup_context=_remember_polar)
_polar_columns_backward.register_autograd(refuse_second_derivatives)
_alternate.register_autograd(_rounds_gradient, setup_context=_remember_rounds)
_alternate_backward.register_autograd(refuse_second_derivatives)
