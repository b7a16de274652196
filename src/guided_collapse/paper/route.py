"""The paper's whole route as one differentiable function: the trust region forward, the dense declarative node backward."""

from typing import Any

import torch
from torch import Tensor

from guided_collapse.paper.declarative_node import jacobian_by_declarative_node
from guided_collapse.paper.problem import ProximalProblem
from guided_collapse.paper.trust_region import solve_by_trust_region

# The Riemannian gradient norm at which the trust region stops: pymanopt's own default.
GRADIENT_TOLERANCE = 1e-6


def basis_by_paper_route(unit_means: Tensor, proximal_basis: Tensor, proximal_weight: float) -> Tensor:
    """The basis U of the simplex ETF nearest to the means, differentiable in them, found as the paper finds it.

    Args:
        unit_means: (num_classes, feature_dim), centered class means of unit Frobenius norm.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant; the trust region starts from it.
        proximal_weight: delta, positive if it is to be differentiated.

    Returns:
        (feature_dim, num_classes), in the dtype of the means and on their device; computed in float64 on the CPU.

    Raises:
        MemoryError: in the backward pass, when the dense matrices would not fit.
    """
    basis: Tensor = _PaperRoute.apply(unit_means, proximal_basis.detach(), proximal_weight)  # type: ignore[no-untyped-call]
    return basis


class _PaperRoute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unit_means: Tensor, proximal_basis: Tensor, proximal_weight: float) -> Tensor:
        anchor = proximal_basis.double().cpu()
        ctx.problem = ProximalProblem(unit_means.double().cpu().T, anchor, proximal_weight)
        ctx.basis = solve_by_trust_region(ctx.problem, anchor, gradient_tolerance=GRADIENT_TOLERANCE)
        return ctx.basis.to(unit_means)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        jacobian = jacobian_by_declarative_node(ctx.problem, ctx.basis)
        grad_means = grad.double().cpu().flatten() @ jacobian
        return grad_means.reshape(grad.shape).T.to(grad), None, None
