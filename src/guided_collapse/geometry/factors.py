"""Singular values and vectors of a wide matrix X = Q diag(s) A, by the quickest way that is accurate enough."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

# Down to this ratio of the smallest to the largest singular value, eigenvectors of XX' in float32 are so near to the exact ones
# that a correction of first order is enough.
WELL_CONDITIONED = 1e-2

# Below this number of rows float64 eigenvectors take less time than the tests of whether float32 ones will do.
FEW_ROWS = 128

# What is corrected must be small beside 1: its square is left over.
CORRECTABLE = 1e-3

# Up to this ratio to the others a direction turns them by less than float32 can show.
VANISHING = 1e-7

# Below this ratio to the largest singular value the eigenvectors of XX' in float64 are too rough for a result in float32 (their
# error is the rounding unit over the ratio squared), and the remainder is decomposed again on its own.
GRAM_RANGE = 1e-4

# Above this ratio the eigenvalues of XX' in float64 still tell which singular values are negligible: their error, some rounding
# units of the largest one, is a hundredth of what they are there.
GRAM_NOISE = 5e-7

# Above this ratio the rows of Q'X are so large beside the rounding errors of a float32 product that it gives them well enough.
SINGLE_RANGE = 1e-2


@dataclass(frozen=True)
class SingularFactors:
    """X = rotation diag(values) frame; singular values in descending order, undetermined ones exactly 0."""

    rotation: Tensor
    """Q, (num_rows, num_rows), orthogonal."""
    values: Tensor
    """s, (num_rows,)."""
    frame: Tensor
    """A, (num_rows, num_columns), orthonormal rows; those of values that are 0 mean nothing."""

    @property
    def rank(self) -> int:
        """How many directions the matrix determines."""
        return int(torch.count_nonzero(self.values))

    def polar(self) -> Tensor:
        """U = Q A, (num_rows, num_columns)."""
        return self.rotation @ self.frame


def factors_by_svd(matrix: Tensor) -> SingularFactors:
    """The factors of a matrix of any dtype, in that dtype."""
    return SingularFactors(*torch.linalg.svd(matrix, full_matrices=False))


def factors_by_gram(matrix: Tensor, negligible: float) -> SingularFactors:
    """The factors in float32 of a matrix in float64, from eigenvectors of XX'.

    Q A is exact to rounding in float32. The factors of their own are exact to rounding where X is ill-conditioned, and otherwise
    near enough for a gradient in float32.

    Args:
        matrix: X, (num_rows, num_columns) with num_rows <= num_columns, finite, in float64.
        negligible: singular values up to this count as 0.
    """
    gram = _lower_gram(matrix).neg_()
    factors = None if len(matrix) < FEW_ROWS else _by_single_precision(matrix, gram, negligible)
    return _by_double_precision(matrix, gram, negligible) if factors is None else factors


def _lower_gram(matrix: Tensor) -> Tensor:
    """XX' on and below the diagonal; what stands above it means nothing."""
    num_rows = len(matrix)
    gram = matrix.new_zeros(num_rows, num_rows)
    for start, stop in itertools.pairwise(num_rows * quarter // 4 for quarter in range(5)):
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram


def _by_single_precision(matrix: Tensor, negative_gram: Tensor, negligible: float) -> SingularFactors | None:
    """Float32 eigenvectors of XX', corrected; None if X is not so well-conditioned that this is accurate.

    With Q'X = diag(s) A and A A' = I + E, the polar factor of X is Q T A + O(E^2), with T_ij = I_ij - E_ij s_j / (s_i + s_j).

    Rows that sum to zero, or nearly, are what a vanishing proximal term leaves. The direction of their sum is then lifted above all
    others in XX', which makes it the first eigenvector, and split off.
    """
    num_rows, trace = len(matrix), -float(negative_gram.trace())
    if trace == 0:
        return None
    single = (negative_gram / trace).float().tril_()
    # Its eigenvalues sum to 1, so the sum of their squares is a mean of them: a lower bound of the largest one, and near it.
    typical = float(2 * single.square().sum() - single.diagonal().square().sum())
    vanishes = float(torch.linalg.vector_norm(matrix.sum(dim=0))) <= VANISHING * math.sqrt(num_rows * typical * trace)
    if vanishes:
        single.sub_(2 * math.sqrt(typical) / num_rows)
    shifted = single.neg()
    shifted.diagonal().sub_(WELL_CONDITIONED**2 * typical)
    if int(torch.linalg.cholesky_ex(shifted).info) != 0:
        return None
    rotation = torch.linalg.eigh(single).eigenvectors
    vanishing = matrix.new_full((num_rows, int(vanishes)), num_rows**-0.5)
    if vanishes:
        rotation = torch.cat([rotation[:, 1:], vanishing.float()], dim=1)
    frame = torch.empty_like(matrix, dtype=torch.float32)
    known_rotation, known = rotation[:, : num_rows - vanishes], frame[: num_rows - vanishes]
    torch.mm(known_rotation.T, matrix.float(), out=known)
    values = torch.linalg.vector_norm(known, dim=1)
    known.div_(values[:, None])
    below = _lower_gram(known).tril_(-1)
    correction = below + below.T
    if float(values.min()) <= negligible or not float(correction.abs().max()) <= CORRECTABLE:
        return None
    known_rotation -= known_rotation @ correction.mul_(values).div_(values[:, None] + values)
    return _with_remainder(vanishing.T @ matrix, rotation, values, frame, negligible)


def _by_double_precision(matrix: Tensor, negative_gram: Tensor, negligible: float) -> SingularFactors:
    """Float64 eigenvectors of XX'; directions that are small beside the largest are split off."""
    negative_squares, rotation = torch.linalg.eigh(negative_gram)
    estimates = negative_squares.neg_().clamp_(min=0).sqrt_()
    largest = float(estimates[0])
    if largest <= negligible:
        identity = torch.eye(len(matrix), dtype=torch.float32, device=matrix.device)
        return SingularFactors(identity, identity.new_zeros(len(matrix)), torch.zeros_like(matrix, dtype=torch.float32))
    num_large, num_known, num_above = (
        int(torch.count_nonzero(estimates > max(ratio * largest, negligible))) for ratio in (SINGLE_RANGE, GRAM_RANGE, 0.0)
    )
    single_rotation = rotation.float()
    frame = torch.empty_like(matrix, dtype=torch.float32, memory_format=torch.contiguous_format)
    torch.mm(single_rotation[:, :num_large].T, matrix.float(), out=frame[:num_large])
    frame[num_large:num_known] = rotation[:, num_large:num_known].T @ matrix
    known = frame[:num_known]
    values = torch.linalg.vector_norm(known, dim=1)
    known.div_(values[:, None])
    if num_known == num_above and negligible > GRAM_NOISE * largest:
        # Nothing is left but what counts as 0.
        return SingularFactors(single_rotation, torch.cat([values, values.new_zeros(len(matrix) - num_known)]), frame)
    return _with_remainder(rotation[:, num_known:].T @ matrix, single_rotation, values, frame, negligible)


def _with_remainder(remainder: Tensor, rotation: Tensor, values: Tensor, frame: Tensor, negligible: float) -> SingularFactors:
    """The factors when the last columns of the rotation and the rows that belong to them are still to be decomposed.

    Args:
        remainder: Q_n'X for these columns Q_n, in float64.
        rotation: Q, float32.
        values: of the first columns only.
        frame: A, whose last rows are filled in here.
        negligible: singular values up to this count as 0.
    """
    num_known = len(values)
    if num_known == len(frame):
        return SingularFactors(rotation, values, frame)
    known = frame[:num_known]
    small = factors_by_gram(_beside(known, remainder), negligible)
    # Once more at the end: what the first time left of the known rows is a rounding error of the largest direction of the rest, and
    # can be large beside its smallest.
    frame[num_known:] = functional.normalize(_beside(known, small.frame), dim=1)
    rotation[:, num_known:] = rotation[:, num_known:] @ small.rotation
    return SingularFactors(rotation, torch.cat([values, small.values]), frame)


def _beside(known: Tensor, rows: Tensor) -> Tensor:
    """What of the rows is orthogonal to the known rows of the frame, in place."""
    return rows.sub_(rows.float() @ known.T @ known)
