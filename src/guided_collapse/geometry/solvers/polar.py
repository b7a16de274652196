"""The polar factor of a matrix and its derivative, as pure functions.

Matrices lie down here, with one class per row as everywhere in this package: X is (num_rows, num_columns) with
num_rows <= num_columns, and X = S U with U U' = I and S symmetric, positive semidefinite. With the thin SVD X = Q diag(s) A it is
U = Q A. Where X has no full row rank U is not unique: it is completed from a given matrix, as the limit of
polar(X + t completion) for t -> 0+.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from guided_collapse.geometry.solvers.factors import SingularFactors, factors_by_gram, factors_by_svd

# A completion whose component in the open directions is below this says nothing about them.
COMPLETION_FLOOR = 1e-6


@dataclass(frozen=True)
class PolarFactors(SingularFactors):
    """The factors of X, with right vectors A_n for the left vectors Q_n that X leaves open.

    With A the rows that X determines, B the completion and B_n = Q_n'B, they are A_n = polar(B_n (I - A'A)), and Q_n is rotated so
    that B_n (I - A'A) = diag(h) A_n.
    """

    completion_values: Tensor
    """h, (num_rows,); infinite where the completion says nothing, 0 for directions that are not open."""


def polar_factors(matrix: Tensor, completion: Tensor, *, negligible: float) -> PolarFactors:
    """The factors of the polar decomposition of `matrix`, in the dtype of `completion`, with undetermined directions completed.

    float64 results come from the SVD. float32 results come from eigenvectors of XX', which are faster and lose nothing that
    float32 could show. The matrix is in float64 in both cases, so that its exact null directions are seen as such.

    Args:
        matrix: X, (num_rows, num_columns) with num_rows <= num_columns, finite, in float64.
        completion: (num_rows, num_columns), float64 or float32, with orthonormal rows.
        negligible: singular values up to this are rounding errors of X and count as 0.

    Returns:
        Factors whose `polar()` has orthonormal rows.
    """
    return _complete(_factors(matrix, negligible, completion.dtype), completion)


def polar_gradient(grad_polar: Tensor, factors: PolarFactors, completion: Tensor) -> Tensor:
    """The gradient with respect to X, given the one with respect to its polar factor U.

    With V = grad_polar, V_Q = Q'V and K = V_Q A',

        dL/dX = Q [ ( (K - K')_ij / (s_i + s_j) - diag(1/s) K ) A + diag(1/s) V_Q ].

    Only sums of singular values appear, so it is stable where they repeat, as they all do at neural collapse.
    Where X has no full row rank the derivative is the one along changes that keep its null space.

    Args:
        grad_polar: V, (num_rows, num_columns).
        factors: what `polar_factors` returned.
        completion: what `polar_factors` was given.

    Returns:
        (num_rows, num_columns).
    """
    rank = factors.rank
    left, right = factors.left[:, :rank], factors.right[:rank]
    grad_right = left.T @ grad_polar
    if rank < len(factors.values):
        open_left, open_values = factors.left[:, rank:], factors.completion_values[rank:]
        open_completion = open_left.T @ completion
        # Through A_n = polar(B_n - (B_n A') A). Rows about which the completion says nothing are arbitrary constants; their
        # infinite values leave no gradient.
        grad_free = _gradient_of_scaled_right(open_left.T @ grad_polar, open_values, factors.right[rank:])
        grad_right.addmm_(right @ open_completion.T, grad_free, alpha=-1).addmm_(right @ grad_free.T, open_completion, alpha=-1)
    return left @ _gradient_of_scaled_right(grad_right, factors.values[:rank], right)


def _gradient_of_scaled_right(grad_right: Tensor, values: Tensor, right: Tensor) -> Tensor:
    """The gradient with respect to Q'X = diag(s) A, given V_Q = Q'V, which is used up."""
    inner, values = grad_right @ right.T, values[:, None]
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return grad_right.div_(values).addmm_(coupling, right)


def _factors(matrix: Tensor, negligible: float, dtype: torch.dtype) -> SingularFactors:
    """The factors in float64 or float32 of a matrix in float64, with singular values up to `negligible` set to 0."""
    if dtype == torch.float32:
        return factors_by_gram(matrix, negligible)
    factors = factors_by_svd(matrix)
    return replace(factors, values=factors.values.where(factors.values > negligible, 0.0))


def _complete(factors: SingularFactors, completion: Tensor) -> PolarFactors:
    """The factors with their open directions filled in, in place."""
    left, values, right, rank = factors.left, factors.values, factors.right, factors.rank
    completion_values = torch.zeros_like(values)
    num_open = len(values) - rank
    if num_open:
        free = _free_part(right[:rank], left[:, rank:].T @ completion)
        rows = free.right[: free.rank]
        if free.rank < num_open:
            # The completion says nothing about these directions either: any of its span that is still free will do.
            others = factors_by_svd(_project_out(torch.cat([right[:rank], rows]), completion)).right
            rows = torch.cat([rows, others[: num_open - free.rank]])
        right[rank:] = rows
        left[:, rank:] = left[:, rank:] @ free.left
        completion_values[rank:] = free.values.where(free.values > 0, torch.inf)
    return PolarFactors(left, values, right, completion_values)


def _free_part(right: Tensor, open_completion: Tensor) -> SingularFactors:
    """The factors of B_n (I - A'A), what the completion says beside the right vectors A; 0 where it says nothing."""
    return _factors(_project_out(right, open_completion).double(), COMPLETION_FLOOR, right.dtype)


def _project_out(right: Tensor, matrix: Tensor) -> Tensor:
    """matrix (I - A'A); twice, because once leaves rounding errors of the size of `matrix` itself."""
    for _ in range(2):
        matrix = matrix - (matrix @ right.T) @ right
    return matrix
