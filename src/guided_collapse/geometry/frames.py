"""The frame nearest to given class means, for any number of classes: a simplex ETF, or where none exists a tight frame.

With C classes in d dimensions a centered frame has rank m = min(d, C-1) at most. For all sizes

    U = polar(2 H~ P / sqrt(m) + delta U_prox),      W = sqrt(C/m) P U'          (H~ and U are d x C, P = I - 11'/C)

minimizes |H~ - W'/sqrt(C)|_F^2 + (delta/2) |U - U_prox|_F^2. For C <= d + 1 it is the paper's problem, m = C - 1 and W a simplex
ETF. For C > d + 1 there is none; there m = d, the rows of U are orthonormal and orthogonal to 1, and W'W = (C/d) I: a tight frame.
At C = d + 1 the two are one, so that delta means the same on either side.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import (
    Solver,
    check_proximal_weight,
    checked_solver,
    nearest_etf,
    squared_distance,
    unit_frobenius_norm,
)
from guided_collapse.geometry.simplex import center_classes, check_num_classes, frame_weight, has_simplex_etf
from guided_collapse.geometry.solvers.exact_products import without_autocast
from guided_collapse.geometry.solvers.nearest_by_products import nearest_basis_by_products, polynomials_of, vanishing_pull
from guided_collapse.geometry.solvers.operations import nearest_basis
from guided_collapse.geometry.tight.harmonic import harmonic_columns
from guided_collapse.geometry.tight.unit_rows import with_unit_rows

# With 40 the tightness defect of Gaussian means was above 1e-3 in one of 3384 cases, 4 classes in 2 dimensions, and above 1e-5 in
# two, of all sizes up to 50 classes.
ROUNDS = 60


@dataclass(frozen=True)
class NearestFrame:
    """The nearest frame, and how well the class means determine it.

    Example:
        >>> import torch
        >>> from guided_collapse.geometry.frames import nearest_frame
        >>> found = nearest_frame(torch.randn(20, 6, generator=torch.Generator().manual_seed(0)))
        >>> tuple(found.weight.shape), float(found.tightness_defect) < 1e-3, float(found.norm_defect) < 1e-6
        ((20, 6), True, True)
    """

    basis: Tensor
    """U, (feature_dim, num_classes): the proximal point of a next solve. Orthonormal columns for feature_dim >= num_classes,
    otherwise orthonormal rows that are orthogonal to 1, up to the defects below where rows of the weight have been normalized."""
    weight: Tensor
    """W, (num_classes, feature_dim)."""
    centered_class_means: Tensor
    """The means it is nearest to, (num_classes, feature_dim)."""
    rank: Tensor | None
    """How many directions of `basis` the problem determines, an integer scalar; as in `NearestETF`."""

    @property
    def distance(self) -> Tensor:
        """|H~ - W/sqrt(C)|_F^2, a scalar with gradient: 0 when the class means are such a frame up to scale."""
        return squared_distance(self.centered_class_means, self.weight)

    @property
    def tightness_defect(self) -> Tensor:
        """How far W is from tight, a scalar; see `tightness_defect`."""
        return tightness_defect(self.weight)

    @property
    def norm_defect(self) -> Tensor:
        """How far the norms of the rows of W are from 1 at most, a scalar."""
        return (torch.linalg.vector_norm(self.weight, dim=1) - 1).abs().max()


def tightness_defect(weight: Tensor) -> Tensor:
    """The root mean square of the eigenvalues' deviations from 1, for the m x m matrix (m/C) W'W: 0 for a tight frame.

    For num_classes <= feature_dim it is W W' on the complement of 1 that is compared, whose other eigenvalues are the same as those
    of W'W: 0 for a simplex ETF.

    Args:
        weight: W, (num_classes, feature_dim), rows of norm 1 in the mean; centered for num_classes <= feature_dim.

    Returns:
        A scalar.
    """
    num_classes, feature_dim = weight.shape
    rank = min(feature_dim, num_classes - 1)
    if num_classes > feature_dim:
        gram, identity = weight.T @ weight, torch.eye(feature_dim, dtype=weight.dtype, device=weight.device)
    else:
        gram, identity = weight @ weight.T, center_classes(torch.eye(num_classes, dtype=weight.dtype, device=weight.device))
    return torch.linalg.matrix_norm(gram * (rank / num_classes) - identity) / math.sqrt(rank)


def nearest_frame(
    centered_class_means: Tensor,
    proximal_basis: Tensor | None = None,
    *,
    proximal_weight: float = 1e-3,
    unit_rows: bool = True,
    rounds: int = ROUNDS,
    solver: Solver | None = None,
) -> NearestFrame:
    """The frame nearest to the class means, for any number of classes and dimensions, differentiable in the means.

    For num_classes <= feature_dim + 1 it is what `nearest_etf` gives, with the same proximal point. The proximal point is
    a basis for that reason: the paper's problem has a direction that the weight does not show.

    For num_classes > feature_dim + 1 the formula of this file has W'W = (C/d) I exactly, and it is the global minimizer. Its rows
    sum to zero and have norm 1 in the mean only. With `unit_rows`, each has norm 1, and W is tight up to `tightness_defect`, which
    more rounds reduce. The problem with unit rows has no closed form, and for some means many local minima. This is one near to
    the minimizer without them, found by rounds from there (see `with_unit_rows`), and not always the best of all. More rounds come
    nearer to it: quickly for means of full rank, slowly for those that hardly determine it. The rows sum to zero up to the same
    defect, except for feature_dim = 1 and for num_classes = feature_dim + 2, where unit rows that are tight and sum to
    zero need not exist (see `can_be_centered`): there they are unit and tight, and not centered.

    More rounds do not make a tight frame of means of which more than C k / d stand in a subspace of k dimensions. Rounds keep them
    in such a subspace, where so many unit rows weigh too much. A proximal point leads out of it, slowly.

    Without a proximal point, or with weight 0, means without full rank leave directions open. They are then the limit of a
    vanishing proximal weight, toward `proximal_basis` or the canonical frame (`harmonic_columns` for C > d + 1). Unit rows of
    classes whose mean is zero start from their row of it. Means that are all zero determine nothing: the proximal point itself is
    returned, with what the rounds make of its rows.

    Args:
        centered_class_means: (num_classes, feature_dim), class means minus the global mean, of any scale: they are divided by
            their Frobenius norm. float16 and bfloat16 are computed in float32.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant: the `basis` of an earlier solution. For
            num_classes > feature_dim + 1 it is sqrt(d/C) W' of a tight frame W.
        proximal_weight: delta, used when there is a proximal point.
        unit_rows: whether rows have norm 1. Without effect for a simplex ETF, whose rows have.
        rounds: toward unit rows: so many with a pull to the means, and twice as many without.
        solver: as for `nearest_etf`, here and in the rounds.

    Returns:
        The solution; `basis`, `weight` and `distance` carry gradient to the means: exact for the closed form, and through the
        rounds for unit rows.

    Raises:
        ValueError: for fewer than two classes, shapes that do not fit, a negative weight or number of rounds, an unknown
            solver, or (by factors) means that are NaN or infinite.

    Example:
        >>> import torch
        >>> from guided_collapse.geometry.frames import nearest_frame
        >>> means = torch.randn(12, 3, requires_grad=True)
        >>> found = nearest_frame(means - means.mean(dim=0))
        >>> found.weight.norm(dim=1).allclose(torch.ones(12))
        True
        >>> found.distance.backward()
    """
    _check(centered_class_means, proximal_basis, proximal_weight, rounds)
    num_classes, feature_dim = centered_class_means.shape
    if has_simplex_etf(feature_dim, num_classes):
        etf = nearest_etf(centered_class_means, proximal_basis, proximal_weight=proximal_weight, solver=solver)
        return NearestFrame(etf.basis, etf.weight, etf.centered_class_means, etf.rank)
    chosen = checked_solver(solver, centered_class_means.device)
    with without_autocast(centered_class_means.device):
        means = centered_class_means.to(torch.promote_types(centered_class_means.dtype, torch.float32))
        if proximal_basis is None:
            proximal = harmonic_columns(num_classes, feature_dim, dtype=means.dtype).to(means.device).T
            proximal_weight = 0.0
        else:
            proximal = proximal_basis.detach().to(means.dtype)
        rank = None
        if chosen == "factors":
            # The operation's own proximal weight is for m = C - 1.
            basis, values = nearest_basis(means, proximal, proximal_weight * math.sqrt(feature_dim / (num_classes - 1)))
            rank = torch.count_nonzero(values)
        else:
            basis = tight_basis_by_products(means, proximal, proximal_weight, proximal_weight=proximal_weight)
        if unit_rows:
            basis = basis_with_unit_rows(basis, means, proximal, proximal_weight, rounds=rounds, solver=chosen)
        return NearestFrame(basis, weight_of(basis), means, rank)


def weight_of(basis: Tensor) -> Tensor:
    """The weight W, (num_classes, feature_dim), of a basis U, (feature_dim, num_classes), for any sizes."""
    feature_dim, num_classes = basis.shape
    if has_simplex_etf(feature_dim, num_classes):
        return frame_weight(basis)
    return math.sqrt(num_classes / feature_dim) * basis.T


def tight_basis_by_products(means: Tensor, proximal_basis: Tensor, pull: Tensor | float, *, proximal_weight: float) -> Tensor:
    """The closed form for num_classes > feature_dim + 1, before rows are normalized, by products alone.

    Args:
        means: (num_classes, feature_dim).
        proximal_basis: (feature_dim, num_classes).
        pull: delta, or less; 0 stands for the vanishing pull.
        proximal_weight: delta.
    """
    rank_and_one = means.shape[1] + 1
    vanishing = vanishing_pull(rank_and_one, proximal_weight)
    return nearest_basis_by_products(
        unit_frobenius_norm(means),
        proximal_basis,
        torch.clamp(pull, min=vanishing) if isinstance(pull, Tensor) else max(pull, vanishing),
        proximal_weight=max(proximal_weight, vanishing),
        polynomials=polynomials_of(rank_and_one, proximal_weight, means.dtype),
    )


def basis_with_unit_rows(
    basis: Tensor, means: Tensor, proximal_basis: Tensor, proximal_weight: float, *, rounds: int, solver: Solver
) -> Tensor:
    """The basis with rows of equal norm, nearer to the means: what `with_unit_rows` makes of the closed form."""
    proximal = proximal_basis.T
    # Centered, classes without a mean would all have the same row. Rounds drive such rows apart, by what rounding has made of them.
    without_mean = (means == 0).all(dim=1, keepdim=True)
    start = torch.where(without_mean, proximal, basis.T)
    weight = with_unit_rows(start, _target(means, proximal, proximal_weight), proximal, rounds=rounds, solver=solver)
    return weight.T * math.sqrt(means.shape[1] / len(means))


def _target(means: Tensor, proximal: Tensor, proximal_weight: float) -> Tensor:
    """(2 H~ P / sqrt(d) + delta U_prox)', or U_prox' if that is zero: what a frame shall have a large inner product with."""
    target = center_classes(unit_frobenius_norm(means)) * (2 / math.sqrt(means.shape[1])) + proximal_weight * proximal
    return torch.where(torch.linalg.vector_norm(target) > 0, target, proximal)


def _check(centered_class_means: Tensor, proximal_basis: Tensor | None, proximal_weight: float, rounds: int) -> None:
    if centered_class_means.ndim != 2 or not centered_class_means.is_floating_point() or centered_class_means.shape[1] == 0:
        raise ValueError(
            "centered_class_means must be a floating-point matrix (num_classes, feature_dim); "
            f"got shape {tuple(centered_class_means.shape)} of {centered_class_means.dtype}."
        )
    num_classes, feature_dim = centered_class_means.shape
    check_num_classes(num_classes)
    check_proximal_weight(proximal_weight)
    if rounds < 0:
        raise ValueError(f"rounds must be a whole number that is not negative; got {rounds}.")
    if proximal_basis is not None and proximal_basis.shape != (feature_dim, num_classes):
        raise ValueError(
            f"proximal_basis must be (feature_dim, num_classes) = ({feature_dim}, {num_classes}); "
            f"got {tuple(proximal_basis.shape)}. Pass the `basis` of an earlier solution."
        )
