"""The solver "factors": polar factors from an SVD or eigenvectors, and their derivative, as an opaque torch operation.

Matrices are wide here: X is (num_rows, num_columns) with num_rows <= num_columns, and X = S U with U U' = I and S symmetric,
positive semidefinite. With the thin SVD X = Q diag(s) A it is U = Q A. When X is rank-deficient U is not unique: it is completed
from a given matrix B, as the limit of polar(X + t B) for t -> 0+.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.operations import DifferentiableOperation, is_plain, operation, without_autocast
from guided_collapse.geometry.simplex import center_classes

# Means of such a norm have squares, and products with a gradient, that are in range of float32.
SAFE_NORMS = (1e-10, 1e10)

# A completion whose component in the open directions is below this says nothing about them.
COMPLETION_FLOOR = 1e-6

# From this number of rows on, eigenvectors in float32 save more time than it takes to find out whether they will do. They do down
# to the second, a ratio of the smallest to the largest singular value, with a first-order correction. What is corrected must be
# small beside 1, because its square is left over.
MANY_ROWS, WELL_CONDITIONED, CORRECTABLE = 80, 1e-2, 1e-3

# Up to this ratio to the others a direction turns them by less than float32 can show.
VANISHING = 1e-7

# Ratios to the largest singular value. Below the first, eigenvectors of XX' in float64 are too rough for a float32 result (their
# error is the rounding unit over the ratio squared), and the remainder is decomposed again. Above the second, eigenvalues of XX'
# still tell which singular values are negligible.
GRAM_RANGE, GRAM_NOISE = 1e-4, 5e-7


class Factors(NamedTuple):
    """X = left diag(values) right; singular values in descending order, undetermined ones exactly 0."""

    left: Tensor
    """The left singular vectors Q as columns, (num_rows, num_rows)."""
    values: Tensor
    right: Tensor
    """The right singular vectors A as rows, (num_rows, num_columns); arbitrary where the value is 0."""
    rank: int
    """The number of values above 0: how many directions the matrix determines."""


def singular_factors(matrix: Tensor, negligible: float, dtype: torch.dtype) -> Factors:
    """Returns the factors in float64, by SVD, or in float32, from eigenvectors of XX', which is faster and exact to rounding there.

    With many well-conditioned rows, float32 factors are only close enough for a gradient; their product Q A is exact to rounding.
    X is finite and in float64; singular values up to `negligible` are set to 0.
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
    """Returns XX' on and below the diagonal, which is all that `eigh` reads; for few rows it is quicker to compute all of it."""
    num_rows = len(matrix)
    if num_rows < MANY_ROWS:
        return matrix @ matrix.T
    gram = matrix.new_zeros(num_rows, num_rows)
    for start, stop in itertools.pairwise(num_rows * quarter // 4 for quarter in range(5)):
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram


def _by_single_precision(matrix: Tensor, negligible: float) -> Factors | None:
    """Takes eigenvectors of XX' in float32 and corrects them; returns None where X is too ill-conditioned for that.

    With Q'X = diag(s) A and A A' = I + E, the polar factor of X is Q T A + O(E^2), with T_ij = I_ij - E_ij s_j / (s_i + s_j).

    Without a proximal term the rows sum to zero, or nearly. The direction of their sum is then lifted above all others in XX',
    which makes it the first eigenvector, and split off.
    """
    num_rows, rounded = len(matrix), matrix.float()
    single = _lower_gram(rounded)
    trace = float(single.trace())
    if trace == 0:
        return None
    single.div_(-trace).tril_()
    # Its eigenvalues sum to 1, so the sum of their squares is a mean of them: a lower bound of the largest one, and close to it.
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
    """Returns all factors when only the first values and right vectors are known; fills in the others.

    The remainder is Q_n'X for the other columns Q_n of Q, in float64.
    """
    num_known = len(values)
    known = right[:num_known]

    def beside_known(rows: Tensor) -> Tensor:
        return rows.sub_(rows.float() @ known.T @ known)

    small = singular_factors(beside_known(remainder), negligible, torch.float32)
    # Projected once more at the end: what the first projection left of the known rows is a rounding error of the largest direction
    # of the remainder, and can be large beside its smallest.
    right[num_known:] = functional.normalize(beside_known(small.right), dim=1)
    left[:, num_known:] = left[:, num_known:] @ small.left
    return Factors(left, torch.cat([values, small.values]), right, num_known + small.rank)


def complete(factors: Factors, completion: Tensor) -> Tensor:
    """Fills in the right vectors A_n for the left vectors Q_n that X leaves open, in place.

    With A the rows that X determines, B the completion and B_n = Q_n'B, they are A_n = polar(B_n (I - A'A)), and Q_n is rotated so
    that B_n (I - A'A) = diag(h) A_n.

    Returns h, (num_rows,): infinite where the completion says nothing, 0 for directions that are not open.
    """
    left, values, right, rank = factors
    completion_values = torch.zeros_like(values)
    num_open = len(values) - rank
    if num_open:
        projected = _project_out(right[:rank], left[:, rank:].T @ completion).double()
        free = singular_factors(projected, COMPLETION_FLOOR, right.dtype)
        rows = free.right[: free.rank]
        if free.rank < num_open:
            # The completion says nothing about these directions either: any of its span that is still free will do.
            others = torch.linalg.svd(_project_out(torch.cat([right[:rank], rows]), completion), full_matrices=False).Vh
            rows = torch.cat([rows, others[: num_open - free.rank]])
        right[rank:] = rows
        left[:, rank:] = left[:, rank:] @ free.left
        completion_values[rank:] = free.values.where(free.values > 0, torch.inf)
    return completion_values


def _project_out(right: Tensor, matrix: Tensor) -> Tensor:
    """Returns matrix (I - A'A); applied twice, because once leaves rounding errors of the size of `matrix` itself."""
    for _ in range(2):
        matrix = matrix - (matrix @ right.T) @ right
    return matrix


def polar_gradient(grad_polar: Tensor, factors: Factors, completion_values: Tensor, completion: Tensor) -> Tensor:
    """Returns the gradient with respect to X, given the one with respect to its polar factor U, (num_rows, num_columns) each.

    With V = grad_polar, V_Q = Q'V and K = V_Q A',

        dL/dX = Q [ ( (K - K')_ij / (s_i + s_j) - diag(1/s) K ) A + diag(1/s) V_Q ].

    Only sums of singular values appear, so it is stable where they repeat, as they all do at neural collapse.
    When X is rank-deficient the derivative is the one along changes that keep its null space.

    The factors of X are completed; `completion` is what `complete` was given, and `completion_values` what it returned.
    """
    left, values, right, rank = factors
    if rank == len(values):
        return left @ _gradient_of_scaled_right(left.T @ grad_polar, values, right)
    left, right, open_left, open_right = left[:, :rank], right[:rank], left[:, rank:], right[rank:]
    grad_right = left.T @ grad_polar
    open_completion = open_left.T @ completion
    # Through A_n = polar(B_n - (B_n A') A). Rows about which the completion says nothing are arbitrary constants; their infinite
    # values leave no gradient.
    grad_free = _gradient_of_scaled_right(open_left.T @ grad_polar, completion_values[rank:], open_right)
    grad_right.addmm_(right @ open_completion.T, grad_free, alpha=-1).addmm_(right @ grad_free.T, open_completion, alpha=-1)
    return left @ _gradient_of_scaled_right(grad_right, values[:rank], right)


def _gradient_of_scaled_right(grad_right: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """Returns the gradient with respect to Q'X = diag(s) A, given V_Q = Q'V, which is overwritten."""
    inner, values = grad_right @ right.T, values[:, None]
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return grad_right.div_(values).addmm_(coupling, right)


def rows_by_factors(
    means: Tensor, proximal: Tensor, proximal_weight: float, first_step: bool | Tensor = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns U', (num_classes, feature_dim), of the frame nearest to the means, differentiable in them once.

    U is the polar factor of X = 2 H~ P / sqrt(m) + delta U_prox with m = min(d, C-1), and for delta = 0 its limit for delta -> 0+.
    H~ is the multiple of unit Frobenius norm of the means, or zero. `proximal` is U_prox', held constant, for which the first step
    takes the solution without proximal term. Where num_classes columns do not fit into feature space, the problem is solved on the
    complement of 1. The other results are the U_prox' that was taken, and the singular values of X up to a factor, 0 for directions
    that were completed.
    """
    if isinstance(first_step, Tensor) and not is_plain(means):
        proximal = _proximal_point(means.detach(), proximal, first_step)
    elif first_step:
        proximal = _solve(means.detach(), proximal, 0.0)[0]
    rows, _, values, *_ = _solve(means, proximal, proximal_weight)
    return rows, proximal, values


def _forward(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns U', the factors (Q') with `completion_values`, and what the means were divided by, their norm then, and the rank."""
    with without_autocast(means.device):
        # In float64 also for float32 means, because the projection must leave an exact null direction.
        matrix = means.to(torch.float64, copy=True)
        norm, magnitude = float(torch.linalg.vector_norm(matrix)), 1.0
        if not SAFE_NORMS[0] < norm < SAFE_NORMS[1]:
            magnitude = float(matrix.abs().max()) or 1.0
            if not math.isfinite(magnitude):
                raise ValueError("centered_class_means must be finite; got NaN or infinite entries. Look for a diverging loss.")
            norm = float(torch.linalg.vector_norm(matrix.div_(magnitude)))
        # X over 2 / (|means| sqrt(m)), with means in range: the polar factor does not depend on the scale.
        pull = proximal_weight * norm * math.sqrt(min(means.shape[1], len(means) - 1)) / 2
        center_classes(matrix, out=matrix).add_(proximal, alpha=pull)
        whole_norm = float(torch.linalg.vector_norm(matrix))
        if not math.isfinite(whole_norm):
            raise ValueError("proximal_basis must be finite; got NaN or infinite entries. Pass the `basis` of an earlier solution.")
        # Without a pull, nothing outweighs the rounding errors of the means themselves, as they were before they were centered.
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
        # Rescaling the means changes nothing, so the radial component gets no gradient.
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
    # An operation, because a compiled graph cannot branch on a value.
    return _forward(means, rows, 0.0)[0] if bool(first_step) else rows.clone(memory_format=torch.contiguous_format)


@_proximal_point.register_fake
def _(means: Tensor, rows: Tensor, first_step: Tensor) -> Tensor:
    return means.new_empty(means.shape)
