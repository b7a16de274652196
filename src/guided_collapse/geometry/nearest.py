"""The simplex ETF nearest to given class means: the paper's inner problem, in closed form.

    minimize over U in St(d, C):  |H~ - U M~|_F^2 + (delta/2) |U - U_prox|_F^2          (eq. 8 of the paper; H~ is d x C here)

Up to a constant, the objective is linear in U on the Stiefel manifold, which makes this an orthogonal Procrustes problem: the
minimizer is the polar factor of X = 2 H~ M~ + delta U_prox.
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
# Evaluated once, because torch.compile in torch 2.6 cannot trace get_args.
SOLVERS: tuple[str, ...] = get_args(Solver)


@dataclass(frozen=True)
class NearestFrame:
    """The frame nearest to class means, and how well the means determine it."""

    basis: Tensor
    """U, (feature_dim, num_classes): the proximal point of the next solve. For feature_dim >= num_classes, its columns are
    orthonormal. Otherwise, its rows are orthonormal and orthogonal to the all-ones vector; for a tight frame with unit rows, only
    approximately."""
    weight: Tensor
    """W, (num_classes, feature_dim): the weight of the classifier."""
    centered_class_means: Tensor
    """The class means that the frame is nearest to, (num_classes, feature_dim)."""
    singular_values: Tensor | None
    """Singular values, up to a common factor, of the matrix X whose polar factor the solver computes; 0 in directions that the
    means leave open. None for the solver "products", which does not compute singular values."""

    @property
    def rank(self) -> Tensor | None:
        """Number of directions of `basis` that the means determine, an integer scalar, or None without `singular_values`."""
        return None if self.singular_values is None else torch.count_nonzero(self.singular_values)

    @property
    def distance(self) -> Tensor:
        """|H~ - W/sqrt(C)|_F^2, a differentiable scalar: 0 if the class means equal the frame up to scale."""
        return (unit_frobenius_norm(self.centered_class_means) - self.weight / math.sqrt(len(self.weight))).square().sum()

    @property
    def tightness_defect(self) -> Tensor:
        """Distance of W from a tight frame, a scalar; see the function `tightness_defect`."""
        return tightness_defect(self.weight)

    @property
    def norm_defect(self) -> Tensor:
        """Largest deviation of a row norm of W from 1, a scalar."""
        return (torch.linalg.vector_norm(self.weight, dim=1) - 1).abs().max()


class NearestETF(NearestFrame):
    r"""The simplex ETF nearest to class means, as `nearest_etf` returns it.

    `weight` is $W = M U^\top$, with unit rows that sum to zero.

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
    r"""Returns the simplex ETF nearest to class means, differentiable in the means.

    This is the paper's inner problem (eq. 8),

    $$
    U = \operatorname*{arg\,min}_{U^\top U = I} \; \lVert \tilde H - U \tilde M \rVert_F^2
    + \frac{\delta}{2} \lVert U - U_{\text{prox}} \rVert_F^2
    = \operatorname{polar}(2 \tilde H \tilde M + \delta U_{\text{prox}}),
    $$

    solved in closed form. $\tilde H$ (d x C) holds the class means, and $\tilde M$ is the simplex ETF
    $M = \sqrt{C/(C-1)} \, (I - \mathbf{1}\mathbf{1}^\top / C)$, both scaled to unit Frobenius norm. The classifier is
    $W = M U^\top$. For d = C - 1, the problem is solved on the orthogonal complement of the all-ones vector $\mathbf{1}$.

    Without a proximal point, or with weight 0, the means leave directions of $U$ open: at least one for d >= C, on which $W$ does
    not depend, and more if the means have a rank below C - 1. The solution is then the limit as the proximal weight tends to 0,
    with `proximal_basis` or, if None, the canonical direction as the proximal point. If all means are zero, the solution is the
    proximal point itself.

    The solver "factors" decomposes a matrix. It is exact up to rounding errors for every input and can be differentiated once. The
    solver "products" only multiplies matrices. It never synchronizes with the device, does not need float64, and can be
    differentiated any number of times, in forward mode, and under the transforms of `torch.func`. Its error grows as the proximal
    weight shrinks: it is about 1e-5 in float32, or 1e-4 for a weight of 1e-4 and rank-deficient means. In place of a vanishing
    weight, "products" uses a thousandth of the singular values that the means have at collapse. For NaN input, "products" returns
    NaN instead of raising an error.

    Args:
        centered_class_means: class means minus the global mean, (num_classes, feature_dim), of any scale. For float16 and
            bfloat16 means, the computation is in float32.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant: the `basis` of an earlier solution, or any matrix with
            orthonormal columns.
        proximal_weight: delta; ignored without a proximal point.
        solver: "factors" or "products"; if None, "factors" on a CPU and "products" elsewhere.
        first_step: whether `proximal_basis` is only an initial direction, a bool or a boolean scalar tensor. If so, "factors"
            first solves without the proximal term and takes that solution as U_prox, as the paper does; "products" uses the
            small weight described above.

    Returns:
        A `NearestETF`; its `basis`, `weight` and `distance` are differentiable in the means.

    Raises:
        TypeError: if the means are not a floating-point tensor.
        ValueError: if feature_dim < num_classes - 1, so that no simplex ETF exists; if shapes do not match; if the weight is
            negative or the solver unknown; or, for "factors", if the means are NaN or infinite.

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
        # The weight is frame_weight(rows.T), computed without transposing twice.
        return NearestETF(rows.T, math.sqrt(num_classes / (num_classes - 1)) * center_classes(rows), means, values)


def solve(
    means: Tensor, proximal_basis: Tensor, proximal_weight: float, solver: Solver | None, first_step: bool | Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Returns U' and the U_prox' that was used, both (num_classes, feature_dim), and the singular values, as in `NearestFrame`."""
    # Transposed throughout to keep one memory layout: a transposition costs as much as a product.
    proximal = proximal_basis.detach().to(means.dtype).T
    if checked_solver(solver, means.device) == "factors":
        return rows_by_factors(means, proximal, proximal_weight, first_step)
    return rows_by_products(means, proximal, proximal_weight, first_step), proximal, None


def checked_solver(solver: Solver | None, device: torch.device) -> Solver:
    """Returns the given solver or, if None, the default for the device: "factors" on a CPU, where it needs no synchronization."""
    if solver is None:
        return "factors" if device.type == "cpu" else "products"
    if solver not in SOLVERS:
        raise ValueError(f"solver must be one of {', '.join(SOLVERS)}, or None; got {solver!r}.")
    return solver


def tightness_defect(weight: Tensor) -> Tensor:
    """Returns the root mean square deviation from 1 of the m largest eigenvalues of (m/C) W'W, m = min(d, C-1): 0 if tight.

    W is (num_classes, feature_dim), with rows whose mean squared norm is 1; for num_classes <= feature_dim, its rows must sum to
    zero. A simplex ETF has a defect of 0.
    """
    num_classes, feature_dim = weight.shape
    rank = min(feature_dim, num_classes - 1)
    identity = torch.eye(min(weight.shape), dtype=weight.dtype, device=weight.device)
    # The smaller Gram matrix. W W' has the eigenvalues of W'W, and a 0 for the direction of 1.
    if num_classes > feature_dim:
        gram = weight.T @ weight
    else:
        gram, identity = weight @ weight.T, center_classes(identity)
    return torch.linalg.matrix_norm(gram * (rank / num_classes) - identity) / math.sqrt(rank)


def check_proximal_weight(proximal_weight: float) -> None:
    """Raises a ValueError if the weight is negative or not finite."""
    if not (proximal_weight >= 0 and math.isfinite(proximal_weight)):
        raise ValueError(f"proximal_weight must be nonnegative and finite; got {proximal_weight}.")


def checked_means(centered_class_means: Tensor, proximal_basis: Tensor | None, proximal_weight: float) -> Tensor:
    """Validates the arguments of a solve and returns the means in the dtype of the computation."""
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
