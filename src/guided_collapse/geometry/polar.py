"""The polar factor of a matrix and its derivative, as pure functions.

Matrices lie down here, with one class per row as everywhere in this package: X is (num_rows, num_columns) with
num_rows <= num_columns, and X = S U with U U' = I and S symmetric, positive semidefinite. With the thin SVD X = Q diag(s) A it is
U = Q A. Where X has no full row rank U is not unique: it is completed from a given matrix, as the limit of
polar(X + t completion) for t -> 0+.
"""

import torch
from torch import Tensor

from guided_collapse.geometry.factors import SingularFactors, factors_by_gram, factors_by_svd

# A completion whose component in the open directions is below this says nothing about them.
COMPLETION_FLOOR = 1e-6


def polar_factors(matrix: Tensor, completion: Tensor, *, relative_floor: float) -> SingularFactors:
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


def polar_gradient(grad_polar: Tensor, factors: SingularFactors, completion: Tensor) -> Tensor:
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
    rotation, values, frame = factors.rotation[:, :rank], factors.values[:rank, None], factors.frame[:rank]
    determined = rotation.T @ grad_polar
    if rank < len(factors.values):
        open_rotation = factors.rotation[:, rank:]
        _add_completion_gradient(determined, open_rotation.T @ grad_polar, frame, open_rotation.T @ completion)
    inner = determined @ frame.T
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return rotation @ determined.div_(values).addmm_(coupling, frame)


def _factors(matrix: Tensor, negligible: float, dtype: torch.dtype) -> SingularFactors:
    """The factors in float64 or float32 of a matrix in float64, with singular values up to `negligible` set to 0."""
    if dtype == torch.float32:
        return factors_by_gram(matrix, negligible)
    factors = factors_by_svd(matrix)
    return factors._replace(values=factors.values.where(factors.values > negligible, 0.0))


def _complete(factors: SingularFactors, completion: Tensor) -> SingularFactors:
    """Puts rows for the undetermined directions into the frame: polar(Q_n' completion (I - A'A)), for open directions Q_n."""
    rank, num_rows = factors.rank, len(factors.values)
    if rank == num_rows:
        return factors
    frame = factors.frame[:rank]
    wanted = _free_part(frame, factors.rotation[:, rank:].T @ completion)
    usable = wanted.rank
    rows = wanted.frame[:usable]
    if usable < num_rows - rank:
        # The completion says nothing about these directions either: any of its span that is still free will do.
        free = factors_by_svd(_project_out(torch.cat([frame, rows]), completion)).frame
        rows = torch.cat([rows, free[: num_rows - rank - usable]])
    return factors._replace(frame=torch.cat([frame, wanted.rotation @ rows]))


def _add_completion_gradient(grad_frame: Tensor, grad_completed: Tensor, frame: Tensor, wanted: Tensor) -> None:
    """Adds what the completed directions Z = polar(B - (B A') A) give to the gradient with respect to A, for B = `wanted`."""
    projected = _free_part(frame, wanted)
    # Directions that the completion leaves open are arbitrary constants: they carry no gradient.
    projected = projected._replace(values=projected.values.where(projected.values > 0, torch.inf))
    grad_projected = polar_gradient(grad_completed, projected, wanted)
    grad_frame.addmm_(frame @ wanted.T, grad_projected, alpha=-1).addmm_(frame @ grad_projected.T, wanted, alpha=-1)


def _free_part(frame: Tensor, completion: Tensor) -> SingularFactors:
    """The factors of B (I - A'A), what the completion B says beside the frame A; 0 where it says nothing."""
    return _factors(_project_out(frame, completion).double(), COMPLETION_FLOOR, frame.dtype)


def _project_out(frame: Tensor, matrix: Tensor) -> Tensor:
    """matrix (I - A'A); twice, because once leaves rounding errors of the size of `matrix` itself."""
    for _ in range(2):
        matrix = matrix - (matrix @ frame.T) @ frame
    return matrix
