"""The paper's inner problem with dense matrices, and its solver, the Riemannian trust-region method of pymanopt.

Matrices have the paper's orientation: H~ and U are (feature_dim, num_classes).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from guided_collapse.lazy import optional


@dataclass(frozen=True)
class ProximalProblem:
    """The problem of minimizing f(U) = |H~ - U M~|_F^2 + (delta/2) |U - U_prox|_F^2 over U'U = I (eqs. 5 and 6)."""

    unit_means: Tensor
    """H~, (feature_dim, num_classes), of unit Frobenius norm."""
    proximal_basis: Tensor | None
    """U_prox, (feature_dim, num_classes); None drops the proximal term."""
    proximal_weight: float
    """delta, ignored without a proximal point."""

    @property
    def frame(self) -> Tensor:
        """M~ = (I - 11'/C) / sqrt(C-1), (num_classes, num_classes), as a dense matrix."""
        num_classes = self.unit_means.shape[1]
        identity = torch.eye(num_classes, dtype=self.unit_means.dtype)
        return (identity - 1.0 / num_classes) / (num_classes - 1) ** 0.5

    @property
    def weight_of_proximal_term(self) -> float:
        """delta, or 0 without a proximal point."""
        return 0.0 if self.proximal_basis is None else self.proximal_weight

    def cost(self, basis: Tensor) -> Tensor:
        """Returns f(U), a scalar."""
        fit = (self.unit_means - basis @ self.frame).square().sum()
        if self.proximal_basis is None:
            return fit
        return fit + self.proximal_weight / 2 * (basis - self.proximal_basis).square().sum()

    def gradient(self, basis: Tensor) -> Tensor:
        """Returns D_U f = 2 (U M~ - H~) M~ + delta (U - U_prox), (feature_dim, num_classes)."""
        gradient = 2 * (basis @ self.frame - self.unit_means) @ self.frame
        if self.proximal_basis is None:
            return gradient
        return gradient + self.proximal_weight * (basis - self.proximal_basis)

    def hessian_along(self, tangent: Tensor) -> Tensor:
        """Returns D^2_UU f [T] = 2 T M~ M~ + delta T, (feature_dim, num_classes), which does not depend on U."""
        return 2 * tangent @ self.frame @ self.frame + self.weight_of_proximal_term * tangent


def solve_by_trust_region(problem: ProximalProblem, initial_basis: Tensor, *, gradient_tolerance: float = 1e-9) -> Tensor:
    """Returns the minimizer that the trust-region method reaches from `initial_basis`, (feature_dim, num_classes).

    Args:
        problem: in float64.
        initial_basis: (feature_dim, num_classes), with orthonormal columns.
        gradient_tolerance: norm of the Riemannian gradient at which the solver stops.

    Raises:
        MissingPackageError: if pymanopt is not installed.
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
