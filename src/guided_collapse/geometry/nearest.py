"""The simplex ETF nearest to given class means: the paper's inner problem, in closed form.

    minimize over U in St(d, C):  |H~ - U M~|_F^2 + (delta/2) |U - U_prox|_F^2          (the paper's eq. 8; H~ is d x C there)

On the Stiefel manifold this is linear in U up to a constant, so the minimizer is the polar factor of X = 2 H~ M~ + delta U_prox.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from guided_collapse.geometry.directions import frame_basis
from guided_collapse.geometry.simplex import check_frame_exists, frame_weight
from guided_collapse.geometry.solvers.exact_products import without_autocast
from guided_collapse.geometry.solvers.nearest_by_products import nearest_basis_by_products, polynomials_of, vanishing_pull
from guided_collapse.geometry.solvers.operations import nearest_basis

Solver = Literal["factors", "products"]
# Asked for once, because the compiler of torch 2.6 stops at the question.
SOLVERS: tuple[str, ...] = get_args(Solver)


@dataclass(frozen=True)
class NearestETF:
    """The nearest simplex ETF, and how well the class means determine it.

    Example:
        >>> from guided_collapse import nearest_etf, simplex_etf
        >>> found = nearest_etf(7 * simplex_etf(3))
        >>> round(float(found.distance), 6), tuple(found.basis.shape), tuple(found.weight.shape)
        (0.0, (3, 3), (3, 3))
    """

    basis: Tensor
    """U, (feature_dim, num_classes); orthonormal columns, or for feature_dim = num_classes - 1 orthonormal rows."""
    weight: Tensor
    """W = M U', (num_classes, feature_dim): unit rows that sum to zero."""
    centered_class_means: Tensor
    """The means it is nearest to, (num_classes, feature_dim)."""
    rank: Tensor | None
    """How many directions of `basis` the problem determines, an integer scalar. The rest comes from the proximal point. None from
    the solver "products", which does not know."""

    @property
    def distance(self) -> Tensor:
        """|H~ - U M~|_F^2, a scalar with gradient: 0 when the class means are a simplex ETF up to scale."""
        return squared_distance(self.centered_class_means, self.weight)


def nearest_etf(
    centered_class_means: Tensor,
    proximal_basis: Tensor | None = None,
    *,
    proximal_weight: float = 1e-3,
    solver: Solver | None = None,
) -> NearestETF:
    """The simplex ETF nearest to the class means, differentiable in the means.

    Without a proximal point, or with weight 0, the problem leaves at least one direction of U open (the weight does not depend
    on it when the means have full rank). It is then the limit of a vanishing proximal weight, toward `proximal_basis` or the
    canonical direction. Means that are all zero determine nothing: the proximal point itself is returned.

    There are two solvers. "factors" decomposes a matrix: it is exact to rounding for every input, and can be differentiated once.
    "products" multiplies matrices only: it never waits for a device, needs no float64 and can be differentiated any number of
    times, in forward mode, and under the transforms of torch.func. It is right to rounding errors over the proximal weight,
    about 1e-5 in float32 (1e-4 for weights of 1e-4 and means that leave directions to it); a vanishing proximal weight is one of
    a thousandth of the means' share, and NaN gives NaN instead of an error.

    Args:
        centered_class_means: (num_classes, feature_dim), class means minus the global mean, of any scale: they are divided by
            their Frobenius norm. float16 and bfloat16 are computed in float32.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant: the `basis` of an earlier solution, or another with
            orthonormal columns.
        proximal_weight: delta, used when there is a proximal point.
        solver: None takes "factors" on a CPU and "products" elsewhere.

    Returns:
        The solution; `basis`, `weight` and `distance` carry gradient to the means.

    Raises:
        ValueError: for sizes without a simplex ETF, shapes that do not fit, a negative weight, an unknown solver, or (by factors)
            NaN or infinite means.

    Example:
        >>> import torch
        >>> from guided_collapse import nearest_etf
        >>> means = torch.randn(3, 8, requires_grad=True)
        >>> found = nearest_etf(means - means.mean(dim=0))
        >>> found.weight.norm(dim=1).allclose(torch.ones(3))
        True
        >>> found.distance.backward()
    """
    _check(centered_class_means, proximal_basis, proximal_weight)
    num_classes, feature_dim = centered_class_means.shape
    with without_autocast(centered_class_means.device):
        dtype = torch.promote_types(centered_class_means.dtype, torch.float32)
        if proximal_basis is None:
            direction = frame_basis(feature_dim, num_classes, dtype=dtype).to(centered_class_means.device)
            proximal_weight = 0.0
        else:
            direction = proximal_basis.detach().to(dtype)
        means = centered_class_means.to(dtype)
        if checked_solver(solver, means.device) == "factors":
            basis, values = nearest_basis(means, direction, proximal_weight)
            return NearestETF(basis, frame_weight(basis), means, torch.count_nonzero(values))
        pull = proximal_weight if proximal_weight > 0 else vanishing_pull(num_classes, 0.0)
        basis = nearest_basis_by_products(
            unit_frobenius_norm(means),
            direction,
            pull,
            proximal_weight=pull,
            polynomials=polynomials_of(num_classes, proximal_weight, dtype),
        )
        return NearestETF(basis, frame_weight(basis), means, None)


def checked_solver(solver: Solver | None, device: torch.device) -> Solver:
    """The solver, or the one for this device if none is chosen: waiting and float64 cost nothing on a CPU."""
    if solver is None:
        return "factors" if device.type == "cpu" else "products"
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, or None; got {solver!r}.")
    return solver


def squared_distance(centered_class_means: Tensor, weight: Tensor) -> Tensor:
    """|H~ - W/sqrt(C)|_F^2, a scalar with gradient, for means of any scale and a frame, both (num_classes, feature_dim)."""
    return (unit_frobenius_norm(centered_class_means) - weight / math.sqrt(len(weight))).square().sum()


def unit_frobenius_norm(matrix: Tensor) -> Tensor:
    """The matrix divided by its Frobenius norm, whatever its scale; a zero matrix stays zero, with zero gradient."""
    largest = matrix.detach().abs().max()
    scaled = matrix / torch.where(largest == 0, 1.0, largest)
    norm = torch.linalg.vector_norm(scaled)
    is_zero = norm == 0
    return scaled * torch.where(is_zero, 0.0, 1 / torch.where(is_zero, 1.0, norm))


def _check(centered_class_means: Tensor, proximal_basis: Tensor | None, proximal_weight: float) -> None:
    if centered_class_means.ndim != 2 or not centered_class_means.is_floating_point():
        raise ValueError(
            "centered_class_means must be a floating-point matrix (num_classes, feature_dim); "
            f"got shape {tuple(centered_class_means.shape)} of {centered_class_means.dtype}."
        )
    num_classes, feature_dim = centered_class_means.shape
    check_frame_exists(feature_dim, num_classes)
    check_proximal_weight(proximal_weight)
    if proximal_basis is not None and proximal_basis.shape != (feature_dim, num_classes):
        raise ValueError(
            f"proximal_basis must be (feature_dim, num_classes) = ({feature_dim}, {num_classes}); "
            f"got {tuple(proximal_basis.shape)}. Pass the `basis` of an earlier solution."
        )


def check_proximal_weight(proximal_weight: float) -> None:
    """Refuses weights that are negative or not finite."""
    if not (proximal_weight >= 0 and math.isfinite(proximal_weight)):
        raise ValueError(f"proximal_weight must be a finite number that is not negative; got {proximal_weight}.")
