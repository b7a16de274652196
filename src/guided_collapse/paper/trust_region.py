"""The paper's solver: a Riemannian trust region on the Stiefel manifold, by pymanopt."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from guided_collapse.lazy import optional
from guided_collapse.paper.problem import ProximalProblem


def solve_by_trust_region(problem: ProximalProblem, initial_basis: Tensor, *, gradient_tolerance: float = 1e-9) -> Tensor:
    """The minimizer of the paper's problem that the trust region reaches from `initial_basis`.

    Args:
        problem: in float64.
        initial_basis: U_init, (feature_dim, num_classes), orthonormal columns.
        gradient_tolerance: the Riemannian gradient norm at which it stops.

    Returns:
        (feature_dim, num_classes), orthonormal columns.

    Raises:
        MissingPackageError: without pymanopt.
    """
    pymanopt = optional("pymanopt", extra="paper")
    manifold = pymanopt.manifolds.Stiefel(*problem.unit_means.shape)

    @pymanopt.function.numpy(manifold)
    def cost(basis: Any) -> Any:
        return problem.cost(torch.from_numpy(basis)).item()

    @pymanopt.function.numpy(manifold)
    def gradient(basis: Any) -> Any:
        return problem.gradient(torch.from_numpy(basis)).numpy()

    @pymanopt.function.numpy(manifold)
    def hessian(basis: Any, tangent: Any) -> Any:
        return problem.hessian_along(torch.from_numpy(np.ascontiguousarray(tangent))).numpy()

    optimizer = pymanopt.optimizers.TrustRegions(
        min_gradient_norm=gradient_tolerance, max_iterations=500, max_time=600.0, verbosity=0
    )
    stated = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient, euclidean_hessian=hessian)
    result = optimizer.run(stated, initial_point=initial_basis.detach().numpy())
    return torch.from_numpy(result.point)
