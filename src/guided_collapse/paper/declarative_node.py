"""The paper's derivative: the dense deep declarative node of Proposition 1, with G from the embedded gradient field.

Matrices are vectorized row by row (the paper's rvec), so U, (d, C), becomes a vector of length dC, and the map dU -> dU N becomes
the matrix I_d (x) N'.
"""

import os
from typing import Any

import torch
from torch import Tensor

from guided_collapse.paper.trust_region import ProximalProblem, solve_by_trust_region

# The trust region stops at this norm of the Riemannian gradient, which is pymanopt's default.
GRADIENT_TOLERANCE = 1e-6


def basis_by_paper_route(unit_means: Tensor, proximal_basis: Tensor, proximal_weight: float) -> Tensor:
    """Returns the basis U of the simplex ETF nearest to the means, solved and differentiated as in the paper.

    Args:
        unit_means: centered class means of unit Frobenius norm, (num_classes, feature_dim).
        proximal_basis: U_prox, (feature_dim, num_classes), held constant; the starting point of the trust-region method.
        proximal_weight: delta; must be positive to differentiate the result.

    Returns:
        (feature_dim, num_classes), in the dtype of the means and on their device; computed in float64 on the CPU.

    Raises:
        MemoryError: in the backward pass, if the dense matrices do not fit into memory.
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


def jacobian_by_declarative_node(problem: ProximalProblem, basis: Tensor, *, available_bytes: int | None = None) -> Tensor:
    """Returns dU/dH~ at the solution U, dense: G^-1 A' (A G^-1 A')^-1 A G^-1 B - G^-1 B (Proposition 1).

    Args:
        problem: in float64, with a proximal point and a positive weight, because G would be singular otherwise.
        basis: the solution U, (feature_dim, num_classes).
        available_bytes: memory limit; if None, the memory that the operating system reports as available.

    Returns:
        (feature_dim * num_classes, feature_dim * num_classes): row-major U by row-major H~.

    Raises:
        ValueError: without a proximal point.
        MemoryError: if the dense matrices do not fit into memory.
    """
    if problem.weight_of_proximal_term <= 0:
        raise ValueError("the declarative node needs a proximal point with a positive weight, without which G is singular.")
    feature_dim, num_classes = basis.shape
    needed = dense_bytes(feature_dim, num_classes)
    if available_bytes is None:
        available_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available_bytes:
        raise MemoryError(
            f"the dense declarative node needs {needed:,} bytes at feature_dim={feature_dim}, num_classes={num_classes}; "
            f"{available_bytes:,} are available. Use guided_collapse.nearest_etf, whose gradient needs no dense matrices."
        )
    identity = torch.eye(feature_dim, dtype=basis.dtype)
    constraint = constraint_jacobian(basis)
    mixed = -2 * torch.kron(identity, problem.frame)
    gradient = problem.gradient(basis)
    multipliers = (gradient.T @ basis + basis.T @ gradient) / 2
    lagrangian = torch.kron(identity, problem.hessian_along(torch.eye(num_classes, dtype=basis.dtype)) - multipliers)
    solved_mixed = torch.linalg.solve(lagrangian, mixed)
    solved_constraint = torch.linalg.solve(lagrangian, constraint.T)
    correction = torch.linalg.solve(constraint @ solved_constraint, constraint @ solved_mixed)
    return solved_constraint @ correction - solved_mixed


def constraint_jacobian(basis: Tensor) -> Tensor:
    """Returns A = L (K + I) (U (x) I)', the derivative of rvech(U'U - I): (C(C+1)/2, dC)."""
    num_classes = basis.shape[1]
    identity = torch.eye(num_classes, dtype=basis.dtype)
    both_orders = commutation_matrix(num_classes, basis.dtype) + torch.eye(num_classes**2, dtype=basis.dtype)
    return elimination_matrix(num_classes, basis.dtype) @ both_orders @ torch.kron(basis.contiguous(), identity).T


def elimination_matrix(size: int, dtype: torch.dtype) -> Tensor:
    """Returns L, (size(size+1)/2, size^2), with L rvec(S) = rvech(S), the lower triangle of S row by row."""
    rows, columns = torch.tril_indices(size, size)
    matrix = torch.zeros(len(rows), size**2, dtype=dtype)
    matrix[torch.arange(len(rows)), rows * size + columns] = 1
    return matrix


def commutation_matrix(size: int, dtype: torch.dtype) -> Tensor:
    """Returns K, (size^2, size^2), with K rvec(N) = rvec(N') for square N."""
    swapped = torch.arange(size**2).reshape(size, size).T.flatten()
    return torch.eye(size**2, dtype=dtype)[swapped]


def dense_bytes(feature_dim: int, num_classes: int) -> int:
    """Returns the peak memory of the dense float64 matrices, in bytes."""
    unknowns = feature_dim * num_classes
    constraints = num_classes * (num_classes + 1) // 2
    return 8 * (5 * unknowns**2 + 3 * constraints * unknowns + 2 * num_classes**4 + constraints * num_classes**2)
