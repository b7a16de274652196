"""The polar factor of a matrix and its derivative, as pure functions.

Matrices lie down here, with one class per row as everywhere in this package: X is (num_rows, num_columns) with
num_rows <= num_columns, and X = S U with U U' = I and S symmetric, positive semidefinite. With the thin SVD X = Q diag(s) A it is
U = Q A. Where X has no full row rank U is not unique: it is completed from a given matrix, as the limit of
polar(X + t completion) for t -> 0+.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from guided_collapse.geometry.factors import SingularFactors, factors_by_gram, factors_by_svd

# A completion whose component in the open directions is below this says nothing about them.
COMPLETION_FLOOR = 1e-6


@dataclass(frozen=True)
class PolarFactors(SingularFactors):
    """The factors of X, with rows of the frame for the directions that X leaves open."""

    completion_values: Tensor
    """h, (num_rows,): with open directions Q_n and their rows A_n, the completion B has Q_n'B (I - A'A) = diag(h) A_n beside the
    rows A that X determines. Infinite where it says nothing, 0 for directions that are not open."""


def polar_factors(matrix: Tensor, completion: Tensor, *, relative_floor: float) -> PolarFactors:
    """The factors of the polar decomposition of `matrix`, in the dtype of `completion`, with undetermined directions completed.

    float64 results come from the SVD. float32 results come from eigenvectors of XX', which are faster and lose nothing that
    float32 could show. The matrix is in float64 in both cases, so that its exact null directions are seen as such.

    Args:
        matrix: X, (num_rows, num_columns) with num_rows <= num_columns, finite, in float64.
        completion: (num_rows, num_columns), float64 or float32, with orthonormal rows.
        relative_floor: singular values up to this share of |X|_F are rounding errors of X and count as 0.

    Returns:
        Factors whose `polar()` has orthonormal rows.
    """
    negligible = relative_floor * float(torch.linalg.vector_norm(matrix))
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
    rotation, frame = factors.rotation[:, :rank], factors.frame[:rank]
    grad_frame = rotation.T @ grad_polar
    if rank < len(factors.values):
        open_rotation, open_values = factors.rotation[:, rank:], factors.completion_values[rank:]
        wanted = open_rotation.T @ completion
        # Through Z = polar(B - (B A') A), for B = `wanted`.
        grad_projected = _gradient_before_rotation(open_rotation.T @ grad_polar, open_values, factors.frame[rank:])
        grad_frame.addmm_(frame @ wanted.T, grad_projected, alpha=-1).addmm_(frame @ grad_projected.T, wanted, alpha=-1)
    return rotation @ _gradient_before_rotation(grad_frame, factors.values[:rank], frame)


def _gradient_before_rotation(grad_frame: Tensor, values: Tensor, frame: Tensor) -> Tensor:
    """The gradient with respect to Q'X = diag(s) A, given V_Q = Q'V, which is used up."""
    inner, values = grad_frame @ frame.T, values[:, None]
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return grad_frame.div_(values).addmm_(coupling, frame)


def _factors(matrix: Tensor, negligible: float, dtype: torch.dtype) -> SingularFactors:
    """The factors in float64 or float32 of a matrix in float64, with singular values up to `negligible` set to 0."""
    if dtype == torch.float32:
        return factors_by_gram(matrix, negligible)
    factors = factors_by_svd(matrix)
    return replace(factors, values=factors.values.where(factors.values > negligible, 0.0))


def _complete(factors: SingularFactors, completion: Tensor) -> PolarFactors:
    """Puts rows for the open directions Q_n into the frame: polar(Q_n' completion (I - A'A)), with Q_n turned to its factors."""
    rotation, values, frame = factors.rotation, factors.values, factors.frame
    rank, num_rows = factors.rank, len(values)
    completion_values = torch.zeros_like(values)
    if rank < num_rows:
        frame, open_rotation = frame[:rank], rotation[:, rank:]
        wanted = _free_part(frame, open_rotation.T @ completion)
        usable = wanted.rank
        rows = wanted.frame[:usable]
        if usable < num_rows - rank:
            # The completion says nothing about these directions either: any of its span that is still free will do.
            free = factors_by_svd(_project_out(torch.cat([frame, rows]), completion)).frame
            rows = torch.cat([rows, free[: num_rows - rank - usable]])
        completion_values[rank:] = wanted.values.where(wanted.values > 0, torch.inf)
        rotation, frame = torch.cat([rotation[:, :rank], open_rotation @ wanted.rotation], dim=1), torch.cat([frame, rows])
    return PolarFactors(rotation, values, frame, completion_values)


def _free_part(frame: Tensor, completion: Tensor) -> SingularFactors:
    """The factors of B (I - A'A), what the completion B says beside the frame A; 0 where it says nothing."""
    return _factors(_project_out(frame, completion).double(), COMPLETION_FLOOR, frame.dtype)


def _project_out(frame: Tensor, matrix: Tensor) -> Tensor:
    """matrix (I - A'A); twice, because once leaves rounding errors of the size of `matrix` itself."""
    for _ in range(2):
        matrix = matrix - (matrix @ frame.T) @ frame
    return matrix
