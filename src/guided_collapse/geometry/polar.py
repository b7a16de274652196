"""The solver "factors": polar factors from an SVD or an eigendecomposition, and their derivative, as a custom torch operation.

Matrices are wide here: X is (num_rows, num_columns) with num_rows <= num_columns. Its polar decomposition is X = S U with U U' = I
and S symmetric, positive semidefinite; from the thin SVD X = Q diag(s) A, the polar factor is U = Q A. When X is rank-deficient, U
is not unique. It is then completed from a given matrix B: U is the limit of polar(X + t B) as t -> 0+.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.operations import DifferentiableOperation, is_plain, operation, without_autocast
from guided_collapse.geometry.simplex import center_classes

# Between these norms, squares of means and their products with a gradient stay within the range of float32.
SAFE_NORMS = (1e-10, 1e10)

# If the component of the completion B along a direction that X leaves undetermined is smaller than this, B does not determine the
# direction either.
COMPLETION_FLOOR = 1e-6

# With MANY_ROWS rows or more, float32 eigenvectors are worth trying: they save more time than it takes to check their accuracy.
# After a first-order correction, they are accurate enough if the ratio of the smallest to the largest singular value is at least
# WELL_CONDITIONED. The remaining error is of the order of the square of the correction, so the correction must be at most
# CORRECTABLE.
MANY_ROWS, WELL_CONDITIONED, CORRECTABLE = 80, 1e-2, 1e-3

# If the rows of X have a sum this small relative to X, splitting off the direction of the sum changes the other singular directions
# by less than float32 resolves.
VANISHING = 1e-7

# Ratios to the largest singular value. The error of float64 eigenvectors of XX' is the unit roundoff over the ratio squared: below
# GRAM_RANGE, it is too large for a float32 result, so that part of X is decomposed separately. Above GRAM_NOISE, eigenvalues of
# XX' still show which singular values are negligible.
GRAM_RANGE, GRAM_NOISE = 1e-4, 5e-7


class Factors(NamedTuple):
    """The factorization X = left diag(values) right, with singular values in descending order; negligible ones are exactly 0."""

    left: Tensor
    """The left singular vectors Q as columns, (num_rows, num_rows)."""
    values: Tensor
    right: Tensor
    """The right singular vectors A as rows, (num_rows, num_columns); arbitrary where the value is 0."""
    rank: int
    """Number of positive singular values, which is the number of directions that X determines."""


def singular_factors(matrix: Tensor, negligible: float, dtype: torch.dtype) -> Factors:
    """Returns the factors of X: for float64, from an SVD; for float32, from eigenvectors of XX', which is faster.

    The product Q A is accurate to the unit roundoff of the dtype. The factors themselves are as accurate, with one exception: in
    float32, with many rows and a well-conditioned X, they are only accurate enough for a gradient.

    Args:
        matrix: X, finite, in float64.
        negligible: singular values up to this size are set to 0.
        dtype: of the factors, float32 or float64.
    """
    if dtype == torch.float64:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        values = values.where(values > negligible, 0.0)
        return Factors(left, values, right, int(torch.count_nonzero(values)))
    num_rows = len(matrix)
    factors = _by_single_precision(matrix, negligible) if num_rows >= MANY_ROWS else None
    if factors is not None:
        return factors
    negative_squares, left = torch.linalg.eigh(_lower_gram(matrix).neg_())
    values = negative_squares.neg_().clamp_(min=0).sqrt_()
    estimates = values.tolist()
    largest = estimates[0]
    if estimates[-1] > max(GRAM_RANGE * largest, negligible):
        return Factors(left.float(), values.float(), torch.mm(left.T, matrix).div_(values[:, None]).float(), num_rows)
    num_known, num_above = (sum(value > max(ratio * largest, negligible) for value in estimates) for ratio in (GRAM_RANGE, 0.0))
    right = torch.zeros_like(matrix, dtype=torch.float32, memory_format=torch.contiguous_format)
    right[:num_known] = left[:, :num_known].T @ matrix / values[:num_known, None]
    known = values[:num_known].float()
    if num_known == num_above and negligible >= GRAM_NOISE * largest:
        return Factors(left.float(), functional.pad(known, (0, num_rows - num_known)), right, num_known)
    return _with_remainder(left[:, num_known:].T @ matrix, left.float(), known, right, negligible)


def _lower_gram(matrix: Tensor) -> Tensor:
    """Returns XX'. With many rows, some entries above the diagonal, which `eigh` does not read, stay 0 to save time."""
    num_rows = len(matrix)
    if num_rows < MANY_ROWS:
        return matrix @ matrix.T
    gram = matrix.new_zeros(num_rows, num_rows)
    for start, stop in itertools.pairwise(num_rows * quarter // 4 for quarter in range(5)):
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram


def _by_single_precision(matrix: Tensor, negligible: float) -> Factors | None:
    """Returns factors from float32 eigenvectors of XX', corrected to first order, or None if X is too ill-conditioned.

    With Q'X = diag(s) A and A A' = I + E, the polar factor of X is Q T A + O(E^2), with T_ij = I_ij - E_ij s_j / (s_i + s_j).

    Without a proximal term, the rows of X sum to zero, up to rounding errors. In that case, the eigenvalue of XX' for the
    all-ones direction is raised above all others, so that this direction becomes the first eigenvector and can be split off.
    """
    num_rows, rounded = len(matrix), matrix.float()
    single = _lower_gram(rounded)
    trace = float(single.trace())
    if trace == 0:
        return None
    single.div_(-trace).tril_()
    # The eigenvalues sum to 1, so the sum of their squares is a weighted mean of the eigenvalues, with the eigenvalues themselves
    # as weights: a close lower bound on the largest.
    typical = float(2 * single.square().sum() - single.diagonal().square().sum())
    sum_vanishes = float(torch.linalg.vector_norm(matrix.sum(dim=0))) <= VANISHING * math.sqrt(num_rows * typical * trace)
    if sum_vanishes:
        single.sub_(2 * math.sqrt(typical) / num_rows)
    shifted = single.neg()
    shifted.diagonal().sub_(WELL_CONDITIONED**2 * typical)
    if int(torch.linalg.cholesky_ex(shifted).info) != 0:
        return None
    left = torch.linalg.eigh(single).eigenvectors[:, int(sum_vanishes) :]
    right = torch.mm(left.T, rounded)
    values = torch.linalg.vector_norm(right, dim=1)
    below = _lower_gram(right.div_(values[:, None])).tril_(-1)
    error = below + below.T
    if float(values.min()) <= negligible or not float(error.abs().max()) <= CORRECTABLE:
        return None
    left = left - left @ error.mul_(values).div_(values[:, None] + values)
    if not sum_vanishes:
        return Factors(left, values, right, num_rows)
    along_sum = matrix.new_full((num_rows, 1), num_rows**-0.5)
    left, right = torch.cat([left, along_sum.float()], dim=1), functional.pad(right, (0, 0, 0, 1))
    return _with_remainder(along_sum.T @ matrix, left, values, right, negligible)


def _with_remainder(remainder: Tensor, left: Tensor, values: Tensor, right: Tensor, negligible: float) -> Factors:
    """Returns all factors, given the leading singular values and right vectors.

    The remainder is Q_n'X in float64, where Q_n holds the columns of Q whose singular values are missing.
    """
    num_known = len(values)
    known = right[:num_known]

    def beside_known(rows: Tensor) -> Tensor:
        return rows.sub_(rows.float() @ known.T @ known)

    small = singular_factors(beside_known(remainder), negligible, torch.float32)
    # Projected again: the first projection leaves components along the known rows that are rounding errors compared with the
    # largest direction of the remainder, but can be large compared with its smallest direction.
    right[num_known:] = functional.normalize(beside_known(small.right), dim=1)
    left[:, num_known:] = left[:, num_known:] @ small.left
    return Factors(left, torch.cat([values, small.values]), right, num_known + small.rank)


def complete(factors: Factors, completion: Tensor) -> Tensor:
    """Fills in the right singular vectors that X leaves open, in place, and returns their completion values.

    X leaves open the directions whose singular value is 0. Let A be the right vectors that X determines, Q_n the left vectors of
    the open directions, B the completion, and B_n = Q_n'B. The missing right vectors are A_n = polar(B_n (I - A'A)), and Q_n is
    rotated so that B_n (I - A'A) = diag(h) A_n.

    Returns:
        h, (num_rows,): 0 for directions that X determines, infinite for directions that neither X nor the completion determines.
    """
    left, values, right, rank = factors
    completion_values = torch.zeros_like(values)
    num_open = len(values) - rank
    if num_open:
        projected = _project_out(right[:rank], left[:, rank:].T @ completion).double()
        free = singular_factors(projected, COMPLETION_FLOOR, right.dtype)
        rows = free.right[: free.rank]
        if free.rank < num_open:
            # The completion does not determine these directions either: take any unused directions of its row space.
            others = torch.linalg.svd(_project_out(torch.cat([right[:rank], rows]), completion), full_matrices=False).Vh
            rows = torch.cat([rows, others[: num_open - free.rank]])
        right[rank:] = rows
        left[:, rank:] = left[:, rank:] @ free.left
        completion_values[rank:] = free.values.where(free.values > 0, torch.inf)
    return completion_values


def _project_out(right: Tensor, matrix: Tensor) -> Tensor:
    """Returns matrix (I - A'A). Projects twice, because a single projection leaves errors proportional to the norm of `matrix`."""
    for _ in range(2):
        matrix = matrix - (matrix @ right.T) @ right
    return matrix


def polar_gradient(grad_polar: Tensor, factors: Factors, completion_values: Tensor, completion: Tensor) -> Tensor:
    """Returns the gradient with respect to X, given the gradient V with respect to its polar factor, (num_rows, num_columns).

    With V_Q = Q'V and K = V_Q A',

        dL/dX = Q [ ( (K - K')_ij / (s_i + s_j) - diag(1/s) K ) A + diag(1/s) V_Q ].

    The formula contains no differences of singular values, so the gradient is stable when singular values repeat, as all of them do
    at neural collapse. When X is rank-deficient, the gradient accounts only for changes of X that keep its left null space.

    Args:
        grad_polar: V.
        factors: the factors of X, after `complete` has filled them in.
        completion_values: h, as returned by `complete`.
        completion: B, as passed to `complete`.
    """
    left, values, right, rank = factors
    if rank == len(values):
        return left @ _gradient_of_scaled_right(left.T @ grad_polar, values, right)
    left, right, open_left, open_right = left[:, :rank], right[:rank], left[:, rank:], right[rank:]
    grad_right = left.T @ grad_polar
    open_completion = open_left.T @ completion
    # The gradient through A_n = polar(B_n - (B_n A') A). Rows that the completion does not determine are arbitrary constants; their
    # infinite completion values make the gradient zero.
    grad_free = _gradient_of_scaled_right(open_left.T @ grad_polar, completion_values[rank:], open_right)
    grad_right.addmm_(right @ open_completion.T, grad_free, alpha=-1).addmm_(right @ grad_free.T, open_completion, alpha=-1)
    return left @ _gradient_of_scaled_right(grad_right, values[:rank], right)


def _gradient_of_scaled_right(grad_right: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """Returns the gradient with respect to Q'X = diag(s) A, given V_Q = Q'V in `grad_right`, which is overwritten."""
    inner, values = grad_right @ right.T, values[:, None]
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return grad_right.div_(values).addmm_(coupling, right)


def rows_by_factors(
    means: Tensor, proximal: Tensor, proximal_weight: float, first_step: bool | Tensor = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns U' of the frame nearest to the means, the U_prox' that was used, and the singular values of X up to a common factor.

    U is the polar factor of X = 2 H~ P / sqrt(m) + delta U_prox with m = min(d, C-1); for delta = 0, U is the limit as
    delta -> 0+. H~ holds the means at unit Frobenius norm, or zero if all means are zero. For d < C, the problem is solved on the
    orthogonal complement of the all-ones vector. U' is differentiable in the means, but only once.

    Args:
        means: (num_classes, feature_dim).
        proximal: U_prox', (num_classes, feature_dim), held constant. On the first step, it is replaced by the solution without the
            proximal term.
        proximal_weight: delta.
        first_step: whether this is the first step, a bool or a boolean scalar tensor.

    Returns:
        U' and U_prox', (num_classes, feature_dim), and the singular values, 0 in completed directions.
    """
    if isinstance(first_step, Tensor) and not is_plain(means):
        proximal = _proximal_point(means.detach(), proximal, first_step)
    elif first_step:
        proximal = _solve(means.detach(), proximal, 0.0)[0]
    rows, _, values, *_ = _solve(means, proximal, proximal_weight)
    return rows, proximal, values


def _forward(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns U', the factors Q', s and A, the completion values, and [divisor of the means, norm after division, rank]."""
    with without_autocast(means.device):
        # In float64 even for float32 means, so that rounding errors do not fill the null direction that centering creates.
        matrix = means.to(torch.float64, copy=True)
        norm, magnitude = float(torch.linalg.vector_norm(matrix)), 1.0
        if not SAFE_NORMS[0] < norm < SAFE_NORMS[1]:
            magnitude = float(matrix.abs().max()) or 1.0
            if not math.isfinite(magnitude):
                raise ValueError("centered_class_means must be finite; got NaN or infinite entries. Look for a diverging loss.")
            norm = float(torch.linalg.vector_norm(matrix.div_(magnitude)))
        # X divided by 2 / (|means| sqrt(m)), because the polar factor does not depend on the scale of X.
        pull = proximal_weight * norm * math.sqrt(min(means.shape[1], len(means) - 1)) / 2
        center_classes(matrix, out=matrix).add_(proximal, alpha=pull)
        whole_norm = float(torch.linalg.vector_norm(matrix))
        if not math.isfinite(whole_norm):
            raise ValueError("proximal_basis must be finite; got NaN or infinite entries. Pass the `basis` of an earlier solution.")
        # Without a proximal term, singular values below the rounding errors of the means before centering must count as zero.
        noise, size = (torch.float64, whole_norm) if proximal_weight > 0 else (means.dtype, norm)
        fits = means.shape[1] >= len(means)
        completion = proximal if fits else center_classes(proximal).T
        wide = matrix if fits else center_classes(matrix).T
        factors = singular_factors(wide, 8 * torch.finfo(noise).eps * size, means.dtype)
        left, values, right, rank = factors
        completion_values = complete(factors, completion)
        rows = left @ right if fits else (left @ right).T.contiguous()
        scale = torch.tensor([magnitude, norm, rank], dtype=torch.float64)
        return rows, left.T.contiguous(), values, right.contiguous(), completion_values, scale


def _shapes(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    num_rows, num_columns = min(means.shape), max(means.shape)
    shapes = (means.shape, (num_rows, num_rows), (num_rows,), (num_rows, num_columns), (num_rows,))
    rows, left, values, right, completion_values = (means.new_empty(shape) for shape in shapes)
    return rows, left, values, right, completion_values, torch.empty(3, dtype=torch.float64)


def _backward(
    grad: Tensor,
    means: Tensor,
    proximal: Tensor,
    transposed_left: Tensor,
    values: Tensor,
    right: Tensor,
    completion_values: Tensor,
    scale: Tensor,
) -> Tensor:
    with without_autocast(grad.device):
        magnitude, norm, rank = scale.tolist()
        factors = Factors(transposed_left.T, values, right, int(rank))
        if means.shape[1] >= len(means):
            grad_matrix = polar_gradient(grad, factors, completion_values, proximal)
        else:
            completion = center_classes(proximal).T
            grad_matrix = polar_gradient(grad.T, factors, completion_values, completion).T.contiguous()
        center_classes(grad_matrix, out=grad_matrix)
        # The solution does not depend on the scale of the means, so the radial component of the gradient is zero.
        scaled = means if magnitude == 1 else means / magnitude
        radial = float(torch.dot(grad_matrix.flatten(), scaled.flatten())) / norm**2 if norm > 0 else 0.0
        grad_matrix.sub_(scaled, alpha=radial)
        return grad_matrix if magnitude == 1 else grad_matrix.div_(magnitude)


_solve = DifferentiableOperation(
    "nearest_basis",
    _forward,
    _shapes,
    lambda inputs, outputs: (*inputs[:2], *outputs[1:]),
    _backward,
    way_out="Detach the weight in the part of the loss that is differentiated twice, or use implicit_gradient=False or "
    'solver="products".',
)


@operation("proximal_point")
def _proximal_point(means: Tensor, rows: Tensor, first_step: Tensor) -> Tensor:
    # A custom operation, because a compiled graph cannot branch on the value of a tensor.
    return _forward(means, rows, 0.0)[0] if bool(first_step) else rows.clone(memory_format=torch.contiguous_format)


@_proximal_point.register_fake
def _(means: Tensor, rows: Tensor, first_step: Tensor) -> Tensor:
    return means.new_empty(means.shape)
