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
    """X = left diag(values) right; singular values in descending order, undetermined ones exactly 0."""

    left: Tensor
    """The left singular vectors Q as columns, (num_rows, num_rows)."""
    values: Tensor
    """s, (num_rows,)."""
    right: Tensor
    """The right singular vectors A as rows, (num_rows, num_columns); those of values that are 0 mean nothing."""

    @property
    def rank(self) -> int:
        """How many directions the matrix determines."""
        return int(torch.count_nonzero(self.values))

    def polar(self) -> Tensor:
        """U = Q A, (num_rows, num_columns)."""
        return self.left @ self.right


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
    if len(matrix) < FEW_ROWS:
        factors = _of_few_rows(matrix, negligible)
        return _by_double_precision(matrix, _lower_gram(matrix).neg_(), negligible) if factors is None else factors
    gram = _lower_gram(matrix).neg_()
    factors = _by_single_precision(matrix, gram, negligible)
    return _by_double_precision(matrix, gram, negligible) if factors is None else factors


def _of_few_rows(matrix: Tensor, negligible: float) -> SingularFactors | None:
    """Float64 eigenvectors of XX', in as few operations as can be; None if there are small values, which take more care."""
    negative_squares, left = torch.linalg.eigh((matrix @ matrix.T).neg_())
    squares = negative_squares.neg_()
    if float(squares[-1]) <= max(GRAM_RANGE**2 * float(squares[0]), negligible**2):
        return None
    values = squares.sqrt_()
    right = torch.mm(left.T, matrix).div_(values[:, None])
    return SingularFactors(left.float(), values.float(), right.float())


def _lower_gram(matrix: Tensor) -> Tensor:
    """XX' on and below the diagonal; what stands above it means nothing."""
    num_rows = len(matrix)
    gram = matrix.new_zeros(num_rows, num_rows)
    for start, stop in itertools.pairwise(num_rows * quarter // 4 for quarter in range(5)):
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram


def _by_single_precision(matrix: Tensor, negative_gram: Tensor, negligible: float) -> SingularFactors | None:
    """Float32 eigenvectors of XX', corrected; None if X is not so well-conditioned that this is accurate.

    Rows that sum to zero, or nearly, are what a vanishing proximal term leaves. The direction of their sum is then lifted above all
    others in XX', which makes it the first eigenvector, and split off.
    """
    num_rows = len(matrix)
    trace = -float(negative_gram.trace())
    if trace == 0:
        return None
    single = (negative_gram / trace).float().tril_()
    # Its eigenvalues sum to 1, so the sum of their squares is a mean of them: a lower bound of the largest one, and near it.
    typical = float(2 * single.square().sum() - single.diagonal().square().sum())
    length_of_sum = float(torch.linalg.vector_norm(matrix.sum(dim=0)))
    sum_vanishes = length_of_sum <= VANISHING * math.sqrt(num_rows * typical * trace)
    if sum_vanishes:
        single.sub_(2 * math.sqrt(typical) / num_rows)
    if not _is_well_conditioned(single, typical):
        return None
    left = torch.linalg.eigh(single).eigenvectors
    if not sum_vanishes:
        return _corrected(left, matrix, negligible)
    along_sum = matrix.new_full((num_rows, 1), num_rows**-0.5)
    known = _corrected(left[:, 1:], matrix, negligible)
    if known is None:
        return None
    left = torch.cat([known.left, along_sum.float()], dim=1)
    right = torch.cat([known.right, torch.empty_like(known.right[:1])])
    return _with_remainder(along_sum.T @ matrix, left, known.values, right, negligible)


def _is_well_conditioned(negative_gram: Tensor, typical: float) -> bool:
    """Whether all eigenvalues of XX' are above the least that float32 eigenvectors are good for."""
    shifted = negative_gram.neg()
    shifted.diagonal().sub_(WELL_CONDITIONED**2 * typical)
    return int(torch.linalg.cholesky_ex(shifted).info) == 0


def _corrected(left: Tensor, matrix: Tensor, negligible: float) -> SingularFactors | None:
    """The factors of X for left singular vectors that are nearly right; None if a value is negligible or the error too large.

    With Q'X = diag(s) A and A A' = I + E, the polar factor of X is Q T A + O(E^2), with T_ij = I_ij - E_ij s_j / (s_i + s_j).

    Args:
        left: Q, (num_rows, num_known), float32.
    """
    right = torch.empty_like(matrix[: left.shape[1]], dtype=torch.float32)
    torch.mm(left.T, matrix.float(), out=right)
    values = torch.linalg.vector_norm(right, dim=1)
    right.div_(values[:, None])
    below = _lower_gram(right).tril_(-1)
    error = below + below.T
    if float(values.min()) <= negligible or not float(error.abs().max()) <= CORRECTABLE:
        return None
    correction = left @ error.mul_(values).div_(values[:, None] + values)
    return SingularFactors(left - correction, values, right)


def _by_double_precision(matrix: Tensor, negative_gram: Tensor, negligible: float) -> SingularFactors:
    """Float64 eigenvectors of XX'; directions that are small beside the largest are split off."""
    negative_squares, left = torch.linalg.eigh(negative_gram)
    estimates = negative_squares.neg_().clamp_(min=0).sqrt_()
    largest = float(estimates[0])
    if largest <= negligible:
        identity = torch.eye(len(matrix), dtype=torch.float32, device=matrix.device)
        return SingularFactors(identity, identity.new_zeros(len(matrix)), torch.zeros_like(matrix, dtype=torch.float32))
    num_large, num_known, num_above = (
        int(torch.count_nonzero(estimates > max(ratio * largest, negligible))) for ratio in (SINGLE_RANGE, GRAM_RANGE, 0.0)
    )
    single_left = left.float()
    right = torch.empty_like(matrix, dtype=torch.float32, memory_format=torch.contiguous_format)
    torch.mm(single_left[:, :num_large].T, matrix.float(), out=right[:num_large])
    right[num_large:num_known] = left[:, num_large:num_known].T @ matrix
    known = right[:num_known]
    values = torch.linalg.vector_norm(known, dim=1)
    known.div_(values[:, None])
    if num_known == num_above and negligible > GRAM_NOISE * largest:
        # Nothing is left but what counts as 0.
        return SingularFactors(single_left, torch.cat([values, values.new_zeros(len(matrix) - num_known)]), right)
    return _with_remainder(left[:, num_known:].T @ matrix, single_left, values, right, negligible)


def _with_remainder(remainder: Tensor, left: Tensor, values: Tensor, right: Tensor, negligible: float) -> SingularFactors:
    """The factors when the last left vectors, and the right ones that belong to them, are still to be decomposed.

    Args:
        remainder: Q_n'X for these columns Q_n, in float64.
        left: Q, float32.
        values: of the first columns only.
        right: A, whose last rows are filled in here.
        negligible: singular values up to this count as 0.
    """
    num_known = len(values)
    if num_known == len(right):
        return SingularFactors(left, values, right)
    known = right[:num_known]
    small = factors_by_gram(_beside(known, remainder), negligible)
    # Once more at the end: what the first time left of the known rows is a rounding error of the largest direction of the rest, and
    # can be large beside its smallest.
    right[num_known:] = functional.normalize(_beside(known, small.right), dim=1)
    left[:, num_known:] = left[:, num_known:] @ small.left
    return SingularFactors(left, torch.cat([values, small.values]), right)


def _beside(known: Tensor, rows: Tensor) -> Tensor:
    """What of the rows is orthogonal to the known right vectors, in place."""
    return rows.sub_(rows.float() @ known.T @ known)
