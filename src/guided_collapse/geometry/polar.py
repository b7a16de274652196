"""The polar factor of a matrix and its derivative, as pure functions.

Matrices lie down here, with one class per row as everywhere in this package: X is (num_rows, num_columns) with
num_rows <= num_columns, and X = S U with U U' = I and S symmetric, positive semidefinite. With the thin SVD X = Q diag(s) A it is
U = Q A. Where X has no full row rank U is not unique: it is completed from a given matrix, as the limit of
polar(X + t completion) for t -> 0+.
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

# Below this ratio to the largest singular value the eigenvectors of XX' in float64 are too rough (their error is the
# rounding unit over the ratio squared), and the remainder is decomposed again on its own.
GRAM_RANGE = 5e-6

# Above this ratio the rows of Q'X are so large beside the rounding errors of a float32 product that it gives them well enough.
SINGLE_RANGE = 1e-2

# A completion whose component in the open directions is below this says nothing about them.
COMPLETION_FLOOR = 1e-6


class SingularFactors(NamedTuple):
    """X = rotation diag(values) frame; singular values in descending order, undetermined ones exactly 0."""

    rotation: Tensor
    """Q, (num_rows, num_rows), orthogonal."""
    values: Tensor
    """s, (num_rows,)."""
    frame: Tensor
    """A, (num_rows, num_columns), orthonormal rows."""

    @property
    def rank(self) -> int:
        """How many directions the matrix determines."""
        return int(torch.count_nonzero(self.values))

    def polar(self) -> Tensor:
        """U = Q A, (num_rows, num_columns)."""
        return self.rotation @ self.frame


def polar_factors(matrix: Tensor, completion: Tensor, *, relative_floor: float) -> SingularFactors:
    """The factors of the polar decomposition of `matrix`, in the dtype of `completion`, with undetermined directions completed.

    float64 results come from the SVD. float32 results come from eigendecompositions of XX' in float64, which are faster and
    lose nothing that float32 could show. The matrix is in float64 in both cases, so that its exact null directions are seen as
    such.

    Args:
        matrix: X, (num_rows, num_columns) with num_rows <= num_columns, finite, in float64.
        completion: (num_rows, num_columns), float64 or float32, with orthonormal rows.
        relative_floor: singular values up to this share of |X|_F are rounding errors of X and count as 0.

    Returns:
        Factors whose `polar()` has orthonormal rows.
    """
    negligible = relative_floor * float(torch.linalg.vector_norm(matrix))
    if completion.dtype == torch.float64:
        factors = _factors_by_svd(matrix)
        factors = factors._replace(values=factors.values.where(factors.values > negligible, 0.0))
    else:
        factors = _factors_by_gram(matrix, negligible)
    return _complete(factors, completion)


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
        determined += _completion_gradient(open_rotation.T @ grad_polar, frame, open_rotation.T @ completion)
    inner = determined @ frame.T
    coupling = (inner - inner.T) / (values + values.T) - inner / values
    return rotation @ determined.div_(values).addmm_(coupling, frame)


def _factors_by_svd(matrix: Tensor) -> SingularFactors:
    return SingularFactors(*torch.linalg.svd(matrix, full_matrices=False))


def _factors_by_gram(matrix: Tensor, negligible: float) -> SingularFactors:
    """Eigenvectors of XX'; directions that are small beside the largest are split off and decomposed on their own.

    Takes float64, returns float32.
    """
    if float(torch.linalg.vector_norm(matrix)) <= negligible:
        identity = torch.eye(len(matrix), dtype=torch.float32, device=matrix.device)
        return SingularFactors(identity, identity.new_zeros(len(matrix)), torch.zeros_like(matrix, dtype=torch.float32))
    negative_squares, rotation = torch.linalg.eigh(_negative_gram(matrix))
    estimates = negative_squares.neg_().clamp_(min=0).sqrt_()
    largest = float(estimates[0])
    num_large = int(torch.count_nonzero(estimates > max(SINGLE_RANGE * largest, negligible)))
    num_accurate = int(torch.count_nonzero(estimates > max(GRAM_RANGE * largest, negligible)))
    single_rotation = rotation.float()
    frame = torch.empty_like(matrix, dtype=torch.float32, memory_format=torch.contiguous_format)
    torch.mm(single_rotation[:, :num_large].T, matrix.float(), out=frame[:num_large])
    frame[num_large:num_accurate] = rotation[:, num_large:num_accurate].T @ matrix
    known = frame[:num_accurate]
    values = torch.linalg.vector_norm(known, dim=1)
    known.div_(values[:, None])
    if num_accurate < len(matrix):
        remainder = rotation[:, num_accurate:].T @ matrix
        small = _factors_by_gram(remainder.sub_(remainder.float() @ known.T @ known), negligible)
        values = torch.cat([values, small.values])
        frame[num_accurate:] = small.frame
        single_rotation[:, num_accurate:] = single_rotation[:, num_accurate:] @ small.rotation
    return SingularFactors(single_rotation, values, frame)


def _negative_gram(matrix: Tensor) -> Tensor:
    """-XX', whose ascending eigenvalues put the largest singular value first; only the lower triangle, which eigh reads."""
    num_rows = len(matrix)
    gram = matrix.new_zeros(num_rows, num_rows)
    for start, stop in itertools.pairwise(num_rows * quarter // 4 for quarter in range(5)):
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram.neg_()


def _complete(factors: SingularFactors, completion: Tensor) -> SingularFactors:
    """Puts rows for the undetermined directions into the frame: polar(Q_n' completion (I - A'A)), for open directions Q_n."""
    rank, num_rows = factors.rank, len(factors.values)
    if rank == num_rows:
        return factors
    frame = factors.frame[:rank]
    wanted = _factors_by_svd(_project_out(frame, factors.rotation[:, rank:].T @ completion))
    usable = int(torch.count_nonzero(wanted.values > COMPLETION_FLOOR))
    rows = wanted.frame[:usable]
    if usable < num_rows - rank:
        # The completion says nothing about these directions either: any of its span that is still free will do.
        free = _factors_by_svd(_project_out(torch.cat([frame, rows]), completion)).frame
        rows = torch.cat([rows, free[: num_rows - rank - usable]])
    return factors._replace(frame=torch.cat([frame, wanted.rotation @ rows]))


def _completion_gradient(grad_completed: Tensor, frame: Tensor, wanted: Tensor) -> Tensor:
    """What the completed directions Z = polar(B - (B A') A) add to the gradient with respect to A, for B = `wanted`."""
    projected = _factors_by_svd(_project_out(frame, wanted))
    # Directions that the completion leaves open are arbitrary constants: they carry no gradient.
    projected = projected._replace(values=projected.values.where(projected.values > COMPLETION_FLOOR, torch.inf))
    grad_projected = polar_gradient(grad_completed, projected, wanted)
    return -((frame @ wanted.T) @ grad_projected + (frame @ grad_projected.T) @ wanted)


def _project_out(frame: Tensor, matrix: Tensor) -> Tensor:
    """matrix (I - A'A); twice, because once leaves rounding errors of the size of `matrix` itself."""
    for _ in range(2):
        matrix = matrix - (matrix @ frame.T) @ frame
    return matrix
