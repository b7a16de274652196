"""The solve as a torch operation: opaque to compilers, with shapes for tracing and a gradient of its own."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from guided_collapse.geometry.registration import is_plain, operation, refusal_of_second_derivatives
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.solvers.exact_products import without_autocast
from guided_collapse.geometry.solvers.polar import PolarFactors, polar_factors, polar_gradient

# Means of such a norm have squares, and products with a gradient, that are in range of float32.
SAFE_NORMS = (1e-10, 1e10)


def nearest_basis(means: Tensor, proximal_basis: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor]:
    """The basis U of the simplex ETF nearest to the means, differentiable in them.

    It is the polar factor of X = 2 H~ M~ + delta U_prox, and for delta = 0 its limit for delta -> 0+. Where only
    num_classes - 1 columns fit into feature space, the same problem is solved on the complement of 1.

    Args:
        means: (num_classes, feature_dim), centered class means of any scale; H~ is their multiple of unit Frobenius norm, or zero.
        proximal_basis: U_prox, (feature_dim, num_classes), of the same dtype, float32 or float64; held constant.
        proximal_weight: delta.

    Returns:
        U, (feature_dim, num_classes), and the singular values of X up to a factor, without gradient, 0 where a direction was
        completed.

    Raises:
        ValueError: for NaN or infinite means.
        NotImplementedError: when it is differentiated twice, or in forward mode.
    """
    if not torch.compiler.is_compiling() and _has_tangent(means):
        raise NotImplementedError(
            "the nearest simplex ETF has a reverse-mode gradient only; got a forward-mode derivative. Use backward()."
        )
    # The operation takes and gives U' to keep every matrix in one memory layout: transposing costs as much as multiplying.
    if is_plain(means):
        transposed_basis, values = _PlainSolve.apply(means, proximal_basis.T, proximal_weight)  # type: ignore[no-untyped-call]
    else:
        transposed_basis, _, values, *_ = _solve(means, proximal_basis.T, proximal_weight)
    return transposed_basis.T, values


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _fits(means: Tensor) -> bool:
    """Whether as many orthonormal columns as there are classes fit into feature space."""
    num_classes, feature_dim = means.shape
    return feature_dim >= num_classes


class _Scale(NamedTuple):
    """What means are divided by so that squares stay within range, 1 if they do, and the norm that they then have."""

    magnitude: float
    norm: float


def _scale(means: Tensor) -> _Scale:
    norm = float(torch.linalg.vector_norm(means, dtype=torch.float64))
    if SAFE_NORMS[0] < norm < SAFE_NORMS[1]:
        return _Scale(1.0, norm)
    lowest, highest = torch.aminmax(means)
    largest = float(torch.maximum(-lowest, highest))
    if not math.isfinite(largest):
        raise ValueError("centered_class_means must be finite; got NaN or infinite entries. Look for a diverging loss.")
    magnitude = largest or 1.0
    return _Scale(magnitude, float(torch.linalg.vector_norm(means.to(torch.float64) / magnitude)))


@operation("nearest_basis")
def _solve(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with without_autocast(means.device):
        # X over 2 / (|means| sqrt(C-1)), with means in range: the polar factor does not depend on the scale. In float64 also for
        # float32 means, because the projection must leave an exact null direction.
        magnitude, norm = _scale(means)
        matrix = means.to(torch.float64, copy=True)
        if magnitude != 1:
            matrix.div_(magnitude)
        pull = proximal_weight * norm * math.sqrt(len(means) - 1) / 2
        center_classes(matrix, out=matrix).add_(proximal, alpha=pull)
        whole_norm = float(torch.linalg.vector_norm(matrix))
        if not math.isfinite(whole_norm):
            raise ValueError("proximal_basis must be finite; got NaN or infinite entries. Pass the `basis` of an earlier solution.")
        if proximal_weight > 0:
            negligible = 8 * torch.finfo(torch.float64).eps * whole_norm
        else:
            # Nothing stands against the rounding errors of the means themselves, as they were before they were centered.
            negligible = 8 * torch.finfo(means.dtype).eps * norm
        if _fits(means):
            factors = polar_factors(matrix, proximal, negligible=negligible)
            return factors.polar(), *_contiguous(factors)
        factors = polar_factors(center_classes(matrix).T, center_classes(proximal).T, negligible=negligible)
        return factors.polar().T.contiguous(), *_contiguous(factors)


def _contiguous(factors: PolarFactors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return factors.left.contiguous(), factors.values, factors.right.contiguous(), factors.completion_values


@_solve.register_fake
def _(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    num_rows, num_columns = min(means.shape), max(means.shape)
    return (
        means.new_empty(means.shape),
        means.new_empty(num_rows, num_rows),
        means.new_empty(num_rows),
        means.new_empty(num_rows, num_columns),
        means.new_empty(num_rows),
    )


@operation("nearest_basis_backward")
def _differentiate(
    grad: Tensor, means: Tensor, proximal: Tensor, left: Tensor, values: Tensor, right: Tensor, completion_values: Tensor
) -> Tensor:
    with without_autocast(grad.device):
        factors = PolarFactors(left, values, right, completion_values)
        if _fits(means):
            grad_matrix = polar_gradient(grad, factors, proximal)
        else:
            grad_matrix = polar_gradient(grad.T, factors, center_classes(proximal).T).T.contiguous()
        center_classes(grad_matrix, out=grad_matrix)
        # What would only rescale the means changes nothing: it gets no gradient.
        magnitude, norm = _scale(means)
        scaled = means if magnitude == 1 else means / magnitude
        radial = float(torch.dot(grad_matrix.flatten(), scaled.flatten())) / norm**2 if norm > 0 else 0.0
        grad_matrix.sub_(scaled, alpha=radial)
        return grad_matrix if magnitude == 1 else grad_matrix.div_(magnitude)


@_differentiate.register_fake
def _(
    grad: Tensor, means: Tensor, proximal: Tensor, left: Tensor, values: Tensor, right: Tensor, completion_values: Tensor
) -> Tensor:
    return means.new_empty(means.shape)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, ...]) -> None:
    means, proximal, _ = inputs
    _, *factors = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(means, proximal, *factors)


def _gradient(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, None, None]:
    if grad is None:
        return None, None, None
    return _differentiate(grad, *ctx.saved_tensors), None, None


_solve.register_autograd(_gradient, setup_context=_remember)
_differentiate.register_autograd(
    refusal_of_second_derivatives(
        "the nearest simplex ETF",
        "Detach the head's weight in the part of the loss that is differentiated twice, or use implicit_gradient=False or "
        'solver="products".',
    )
)


class _PlainSolve(torch.autograd.Function):
    """The operation called past torch's dispatcher, which takes as long as a solve with few classes."""

    @staticmethod
    def forward(ctx: Any, means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor]:
        transposed_basis, *factors = _solve.function(means, proximal, proximal_weight)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(means, proximal, *factors)
        values = factors[1]
        ctx.mark_non_differentiable(values)
        return transposed_basis, values

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        # With a graph of this pass it is the operation, which refuses a second derivative in words.
        differentiate = _differentiate if torch.is_grad_enabled() else _differentiate.function
        return differentiate(grad, *ctx.saved_tensors), None, None


def proximal_point(means: Tensor, basis: Tensor, is_first: Tensor) -> Tensor:
    """The proximal point of a training step: the basis of the step before, or on the first step a solve from it.

    The first step solves without the proximal term, from the initial direction. It is an operation of its own because the
    choice depends on a value, which a compiled graph cannot branch on.

    Args:
        means: (num_classes, feature_dim), centered class means.
        basis: (feature_dim, num_classes), the previous basis, or on the first step the initial direction.
        is_first: a boolean scalar.

    Returns:
        (feature_dim, num_classes), without gradient and without memory shared with `basis`.
    """
    return _choose_proximal_point(means.detach(), basis.T, is_first).T


@operation("proximal_point")
def _choose_proximal_point(means: Tensor, basis: Tensor, is_first: Tensor) -> Tensor:
    return _solve(means, basis, 0.0)[0] if bool(is_first) else basis.clone(memory_format=torch.contiguous_format)


@_choose_proximal_point.register_fake
def _(means: Tensor, basis: Tensor, is_first: Tensor) -> Tensor:
    return means.new_empty(means.shape)
