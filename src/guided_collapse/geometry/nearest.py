"""The simplex ETF nearest to given class means: the paper's inner problem, in closed form.

    minimize over U in St(d, C):  |H~ - U M~|_F^2 + (delta/2) |U - U_prox|_F^2          (the paper's eq. 8; H~ is d x C there)

On the Stiefel manifold this is linear in U up to a constant, so the minimizer is the polar factor of X = 2 H~ M~ + delta U_prox.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from guided_collapse.geometry.operations import without_autocast
from guided_collapse.geometry.polar import rows_by_factors
from guided_collapse.geometry.products import rows_by_products
from guided_collapse.geometry.simplex import center_classes, check_frame_exists, frame_basis, unit_frobenius_norm

Solver = Literal["factors", "products"]
# Evaluated once, because the compiler of torch 2.6 cannot trace it.
SOLVERS: tuple[str, ...] = get_args(Solver)


@dataclass(frozen=True)
class NearestFrame:
    """The nearest frame, and how well the class means determine it."""

    basis: Tensor
    """U, (feature_dim, num_classes): the proximal point of the next solve. Orthonormal columns for feature_dim >= num_classes,
    otherwise orthonormal rows that are orthogonal to 1, up to the defects below if rows of the weight have been normalized."""
    weight: Tensor
    """W, (num_classes, feature_dim)."""
    centered_class_means: Tensor
    """The means it is nearest to, (num_classes, feature_dim)."""
    singular_values: Tensor | None
    """Of the matrix whose polar factor was taken, up to a factor; 0 where the means leave a direction open. None from the solver
    "products", which does not know them."""

    @property
    def rank(self) -> Tensor | None:
        """How many directions of `basis` the problem determines, an integer scalar, or None; the proximal point sets the rest."""
        return None if self.singular_values is None else torch.count_nonzero(self.singular_values)

    @property
    def distance(self) -> Tensor:
        """|H~ - W/sqrt(C)|_F^2, a scalar with gradient: 0 when the class means are such a frame up to scale."""
        return (unit_frobenius_norm(self.centered_class_means) - self.weight / math.sqrt(len(self.weight))).square().sum()

    @property
    def tightness_defect(self) -> Tensor:
        """How far W is from tight, a scalar; see `tightness_defect`."""
        return tightness_defect(self.weight)

    @property
    def norm_defect(self) -> Tensor:
        """The largest distance of a row's norm from 1, a scalar."""
        return (torch.linalg.vector_norm(self.weight, dim=1) - 1).abs().max()


class NearestETF(NearestFrame):
    """The nearest simplex ETF: `weight` is M U', with unit rows that sum to zero.

    Example:
        >>> from guided_collapse import nearest_etf, simplex_etf
        >>> found = nearest_etf(7 * simplex_etf(3))
        >>> tuple(found.basis.shape), tuple(found.weight.shape), round(float(found.distance), 6)
        ((3, 3), (3, 3), 0.0)
    """


def nearest_etf(
    centered_class_means: Tensor,
    proximal_basis: Tensor | None = None,
    *,
    proximal_weight: float = 1e-3,
    solver: Solver | None = None,
    first_step: bool | Tensor = False,
) -> NearestETF:
    """Returns the simplex ETF nearest to the class means, differentiable in the means.

    Without a proximal point, or with weight 0, the problem leaves at least one direction of U open (the weight does not depend
    on it when the means have full rank). The solution is then the limit of a vanishing proximal weight, toward `proximal_basis` or
    the canonical direction. Means that are all zero determine nothing: the proximal point itself is returned.

    There are two solvers. "factors" decomposes a matrix: it is exact to rounding for every input, and can be differentiated once.
    "products" only multiplies matrices: it never synchronizes with the device, needs no float64 and can be differentiated any
    number of times, in forward mode, and under the transforms of torch.func. It is accurate to rounding errors over the
    proximal weight, about 1e-5 in float32 (1e-4 for weights of 1e-4 and means that leave directions to it). Its vanishing weight
    is a thousandth of the means' share, and NaN gives NaN instead of an error.

    Args:
        centered_class_means: (num_classes, feature_dim), class means minus the global mean, of any scale: they are divided by
            their Frobenius norm. float16 and bfloat16 are computed in float32.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant: the `basis` of an earlier solution, or another with
            orthonormal columns.
        proximal_weight: delta, used when there is a proximal point.
        solver: None takes "factors" on a CPU and "products" elsewhere.
        first_step: a bool or a boolean scalar tensor: whether `proximal_basis` is only an initial direction. By factors, the
            solution without proximal term then becomes the proximal point; by products, the pull is the vanishing one.

    Returns:
        The solution; `basis`, `weight` and `distance` carry gradient to the means.

    Raises:
        TypeError: if the means are not a floating-point tensor.
        ValueError: if no simplex ETF of this size exists, for shapes that do not fit, a negative weight, an unknown solver, or (by
            factors) NaN or infinite means.

    Example:
        >>> import torch
        >>> from guided_collapse import nearest_etf
        >>> means = torch.randn(3, 8, requires_grad=True)
        >>> found = nearest_etf(means - means.mean(dim=0))
        >>> found.weight.norm(dim=1).allclose(torch.ones(3))
        True
        >>> found.distance.backward()
    """
    means = checked_means(centered_class_means, proximal_basis, proximal_weight)
    num_classes, feature_dim = means.shape
    check_frame_exists(feature_dim, num_classes)
    with without_autocast(means.device):
        if proximal_basis is None:
            proximal_basis, proximal_weight = frame_basis(feature_dim, num_classes, dtype=means.dtype).to(means.device), 0.0
        rows, _, values = solve(means, proximal_basis, proximal_weight, solver, first_step)
        # frame_weight(rows.T), without transposing there and back.
        return NearestETF(rows.T, math.sqrt(num_classes / (num_classes - 1)) * center_classes(rows), means, values)


def solve(
    means: Tensor, proximal_basis: Tensor, proximal_weight: float, solver: Solver | None, first_step: bool | Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns U' and the U_prox' that it was pulled to, (num_classes, feature_dim), and the singular values; see `nearest_etf`."""
    # Transposed, to keep every matrix in one memory layout: transposing costs as much as multiplying.
    proximal = proximal_basis.detach().to(means.dtype).T
    if checked_solver(solver, means.device) == "factors":
        return rows_by_factors(means, proximal, proximal_weight, first_step)
    return rows_by_products(means, proximal, proximal_weight, first_step), proximal, None


def checked_solver(solver: Solver | None, device: torch.device) -> Solver:
    """Returns the solver, or the one for this device if none is chosen: synchronizing and float64 cost nothing on a CPU."""
    if solver is None:
        return "factors" if device.type == "cpu" else "products"
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, or None; got {solver!r}.")
    return solver


def tightness_defect(weight: Tensor) -> Tensor:
    """Returns the root mean square deviation from 1 of the eigenvalues of the m x m matrix (m/C) W'W: 0 for a tight frame.

    W is (num_classes, feature_dim), with rows of norm 1 on average. For num_classes <= feature_dim it must be centered, and W W' is
    compared on the complement of 1, whose other eigenvalues are those of W'W: 0 for an ETF.
    """
    num_classes, feature_dim = weight.shape
    rank = min(feature_dim, num_classes - 1)
    identity = torch.eye(min(weight.shape), dtype=weight.dtype, device=weight.device)
    if num_classes > feature_dim:
        gram = weight.T @ weight
    else:
        gram, identity = weight @ weight.T, center_classes(identity)
    return torch.linalg.matrix_norm(gram * (rank / num_classes) - identity) / math.sqrt(rank)


def check_proximal_weight(proximal_weight: float) -> None:
    """Raises for weights that are negative or not finite."""
    if not (proximal_weight >= 0 and math.isfinite(proximal_weight)):
        raise ValueError(f"proximal_weight must be a finite number that is not negative; got {proximal_weight}.")


def checked_means(centered_class_means: Tensor, proximal_basis: Tensor | None, proximal_weight: float) -> Tensor:
    """Returns the means in the dtype of the computation, if these can be arguments of a solve."""
    if not isinstance(centered_class_means, Tensor) or not centered_class_means.is_floating_point():
        found = centered_class_means.dtype if isinstance(centered_class_means, Tensor) else type(centered_class_means)
        raise TypeError(f"centered_class_means must be a floating-point tensor; got {found}.")
    if centered_class_means.ndim != 2:
        raise ValueError(
            f"centered_class_means must be a matrix (num_classes, feature_dim); got shape {tuple(centered_class_means.shape)}."
        )
    check_proximal_weight(proximal_weight)
    expected = centered_class_means.shape[::-1]
    if proximal_basis is not None and proximal_basis.shape != expected:
        raise ValueError(
            f"proximal_basis must be (feature_dim, num_classes) = {tuple(expected)}; got {tuple(proximal_basis.shape)}. "
            "Pass the `basis` of an earlier solution."
        )
    return centered_class_means.to(torch.promote_types(centered_class_means.dtype, torch.float32))
