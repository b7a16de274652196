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

# Ratios to the largest singular value. Below the first, eigenvectors of XX' in float64 are too rough for a float32 result (their
# error is the rounding unit over the ratio squared), and the remainder is decomposed again. Above the second, eigenvalues of XX'
# still tell which singular values are negligible.
GRAM_RANGE, GRAM_NOISE = 1e-4, 5e-7


class Factors(NamedTuple):
    """X = left diag(values) right; singular values in descending order, undetermined ones exactly 0."""

    left: Tensor
    """The left singular vectors Q as columns, (num_rows, num_rows)."""
    values: Tensor
    """s, (num_rows,)."""
    right: Tensor
    """The right singular vectors A as rows, (num_rows, num_columns); arbitrary where the value is 0."""

    @property
    def rank(self) -> int:
        """How many directions the matrix determines."""
        return int(torch.count_nonzero(self.values))


def singular_factors(matrix: Tensor, negligible: float, dtype: torch.dtype) -> Factors:
    """Returns the factors in float64, by SVD, or in float32, from eigenvectors of XX', which is faster and exact to rounding there.

    Args:
        matrix: X, (num_rows, num_columns) with num_rows <= num_columns, finite, in float64.
        negligible: singular values up to this are set to 0.
        dtype: float64 or float32.
    """
    if dtype == torch.float64:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return Factors(left, values.where(values > negligible, 0.0), right)
    negative_squares, left = torch.linalg.eigh(_lower_gram(matrix).neg_())
    values = negative_squares.neg_().clamp_(min=0).sqrt_()
    largest = float(values[0])
    if float(values[-1]) > max(GRAM_RANGE * largest, negligible):
        return Factors(left.float(), values.float(), torch.mm(left.T, matrix).div_(values[:, None]).float())
    if largest <= negligible:
        identity = torch.eye(len(matrix), dtype=torch.float32, device=matrix.device)
        return Factors(identity, identity.new_zeros(len(matrix)), torch.zeros_like(matrix, dtype=torch.float32))
    num_known, num_above = (int(torch.count_nonzero(values > max(ratio * largest, negligible))) for ratio in (GRAM_RANGE, 0.0))
    right = torch.empty_like(matrix, dtype=torch.float32, memory_format=torch.contiguous_format)
    right[:num_known] = left[:, :num_known].T @ matrix / values[:num_known, None]
    known = values[:num_known].float()
    if num_known == num_above and negligible > GRAM_NOISE * largest:
        return Factors(left.float(), functional.pad(known, (0, len(matrix) - num_known)), right)
    return _with_remainder(left[:, num_known:].T @ matrix, left.float(), known, right, negligible)


def _lower_gram(matrix: Tensor) -> Tensor:
    """Returns XX' on and below the diagonal, which is all that `eigh` reads; for few rows it is quicker to compute all of it."""
    num_rows = len(matrix)
    if num_rows < 128:
        return matrix @ matrix.T
    gram = matrix.new_zeros(num_rows, num_rows)
    for start, stop in itertools.pairwise(num_rows * quarter // 4 for quarter in range(5)):
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram


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
    return Factors(left, torch.cat([values, small.values]), right)


def complete(factors: Factors, completion: Tensor) -> Tensor:
    """Fills in the right vectors A_n for the left vectors Q_n that X leaves open, in place.

    With A the rows that X determines, B the completion and B_n = Q_n'B, they are A_n = polar(B_n (I - A'A)), and Q_n is rotated so
    that B_n (I - A'A) = diag(h) A_n.

    Returns h, (num_rows,): infinite where the completion says nothing, 0 for directions that are not open.
    """
    left, values, right = factors
    rank, completion_values = factors.rank, torch.zeros_like(values)
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
    rank = factors.rank
    left, right = factors.left[:, :rank], factors.right[:rank]
    grad_right = left.T @ grad_polar
    if rank < len(factors.values):
        open_left = factors.left[:, rank:]
        open_completion = open_left.T @ completion
        # Through A_n = polar(B_n - (B_n A') A). Rows about which the completion says nothing are arbitrary constants; their
        # infinite values leave no gradient.
        grad_free = _gradient_of_scaled_right(open_left.T @ grad_polar, completion_values[rank:], factors.right[rank:])
        grad_right.addmm_(right @ open_completion.T, grad_free, alpha=-1).addmm_(right @ grad_free.T, open_completion, alpha=-1)
    return left @ _gradient_of_scaled_right(grad_right, factors.values[:rank], right)


def _gradient_of_scaled_right(grad_right: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """Returns the gradient with respect to Q'X = diag(s) A, given V_Q = Q'V, which is overwritten."""
    inner, values = grad_right @ right.T, values[:, None]
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return grad_right.div_(values).addmm_(coupling, right)


def basis_by_factors(
    means: Tensor, proximal_basis: Tensor, proximal_weight: float, first_step: bool | Tensor = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the basis U of the frame nearest to the means, differentiable in them once.

    It is the polar factor of X = 2 H~ P / sqrt(m) + delta U_prox with m = min(d, C-1), and for delta = 0 its limit for delta -> 0+.
    Where num_classes columns do not fit into feature space, the problem is solved on the complement of 1.

    Args:
        means: (num_classes, feature_dim), centered class means of any scale; H~ is their multiple of unit Frobenius norm, or zero.
        proximal_basis: U_prox, (feature_dim, num_classes), of the same dtype, float32 or float64; held constant.
        proximal_weight: delta.
        first_step: whether to take the solution without proximal term for U_prox.

    Returns:
        U and U_prox, (feature_dim, num_classes), and the singular values of X up to a factor, without gradient, 0 where a direction
        was completed.

    Raises:
        ValueError: for NaN or infinite means.
        NotImplementedError: when it is differentiated twice, in forward mode, or under a transform of torch.func.
    """
    # The operation takes and gives U' to keep every matrix in one memory layout: transposing costs as much as multiplying.
    rows = proximal_basis.T
    if isinstance(first_step, Tensor) and not is_plain(means):
        rows = _proximal_point(means.detach(), rows, first_step)
    elif first_step:
        rows = _solve(means.detach(), rows, 0.0)[0]
    transposed_basis, _, values, *_ = _solve(means, rows, proximal_weight)
    return transposed_basis.T, rows.T, values


def _forward(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns U', the factors with `completion_values`, and what the means were divided by with the norm they then have."""
    with without_autocast(means.device):
        norm, magnitude = float(torch.linalg.vector_norm(means, dtype=torch.float64)), 1.0
        # In float64 also for float32 means, because the projection must leave an exact null direction.
        matrix = means.to(torch.float64, copy=True)
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
        wide, completion = _wide(matrix, proximal)
        factors = singular_factors(wide, 8 * torch.finfo(noise).eps * size, means.dtype)
        completion_values = complete(factors, completion)
        polar = factors.left @ factors.right
        scale = torch.tensor([magnitude, norm], dtype=torch.float64)
        left, right = factors.left.contiguous(), factors.right.contiguous()
        return polar if wide is matrix else polar.T.contiguous(), left, factors.values, right, completion_values, scale


def _wide(matrix: Tensor, proximal: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both with no more rows than columns: as they are, or for more classes than dimensions centered and transposed."""
    num_classes, feature_dim = matrix.shape
    return (matrix, proximal) if feature_dim >= num_classes else (center_classes(matrix).T, center_classes(proximal).T)


def _shapes(means: Tensor, proximal: Tensor, proximal_weight: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    num_rows, num_columns = min(means.shape), max(means.shape)
    shapes = (means.shape, (num_rows, num_rows), (num_rows,), (num_rows, num_columns), (num_rows,))
    basis, left, values, right, completion_values = (means.new_empty(shape) for shape in shapes)
    return basis, left, values, right, completion_values, torch.empty(2, dtype=torch.float64)


def _backward(
    grad: Tensor,
    means: Tensor,
    proximal: Tensor,
    left: Tensor,
    values: Tensor,
    right: Tensor,
    completion_values: Tensor,
    scale: Tensor,
) -> Tensor:
    with without_autocast(grad.device):
        factors = Factors(left, values, right)
        if means.shape[1] >= len(means):
            grad_matrix = polar_gradient(grad, factors, completion_values, proximal)
        else:
            completion = center_classes(proximal).T
            grad_matrix = polar_gradient(grad.T, factors, completion_values, completion).T.contiguous()
        center_classes(grad_matrix, out=grad_matrix)
        # Rescaling the means changes nothing, so the radial component gets no gradient.
        magnitude, norm = scale.tolist()
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
