"""Frames for any number of classes: a simplex ETF, or a tight frame where none exists, for num_classes > feature_dim + 1.

A centered frame of C classes in d dimensions has at most rank m = min(d, C-1). For all sizes

    U = polar(2 H~ P / sqrt(m) + delta U_prox),      W = sqrt(C/m) P U'          (H~ and U are d x C, P = I - 11'/C)

minimizes |H~ - W'/sqrt(C)|_F^2 + (delta/2) |U - U_prox|_F^2. For C <= d + 1 this is the paper's problem: m = C - 1 and W is a
simplex ETF. For C > d + 1, no simplex ETF exists; m = d, the rows of U are orthonormal and orthogonal to the all-ones vector 1,
and W'W = (C/d) I: W is a tight frame. The two cases coincide at C = d + 1, so delta has the same meaning in both.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.nearest import (
    NearestFrame,
    Solver,
    checked_means,
    checked_solver,
    nearest_etf,
    solve,
)
from guided_collapse.geometry.operations import DifferentiableOperation, is_plain, product, without_autocast
from guided_collapse.geometry.polar import Factors, polar_gradient
from guided_collapse.geometry.products import polar_by_products, polar_polynomials
from guided_collapse.geometry.simplex import (
    Direction,
    center_classes,
    centered_unit,
    check_direction,
    check_feature_dim,
    check_num_classes,
    frame_basis,
    frame_weight,
    has_simplex_etf,
)

# With only 40 rounds, over 3384 sets of Gaussian means of all sizes up to 50 classes, the tightness defect exceeded 1e-3 once (4
# classes in 2 dimensions) and 1e-5 twice. A fixed frame has no target to stay close to and only needs to be tight, so it takes
# fewer rounds.
ROUNDS, ROUNDS_OF_FIXED_FRAMES = 60, 20

# The first FEW_ROUNDS rounds do not scale the rows, because the scales would not converge in so few rounds. A training step takes
# only these rounds, or a single round if there are at least MANY_CLASSES classes per dimension.
FEW_ROUNDS, MANY_CLASSES = 3, 16

# Step sizes toward the target: PULL in rounds without scales, SETTLING_PULL in rounds with scales. The rows of the target, like
# those of the frame, have norm 1 on average. In rounds with scales, smaller steps converge slowly, and with steps of twice this
# size the scales converge slowly.
PULL, SETTLING_PULL = 0.3, 1.0

LEAST_SPARE_SHARE = 1e-2  # minimum squared norm of a row of the complement, as a fraction of the mean squared norm

# After the rows of a matrix with orthonormal columns are normalized, its smallest singular value is at least 0.02 times the
# largest.
ROUND_POLYNOMIALS = polar_polynomials(0.02)

# The gradient of differences between equal rows is limited to this multiple of the rest of the gradient.
LARGEST_SHARE_APART = 10.0


def nearest_frame(
    centered_class_means: Tensor,
    proximal_basis: Tensor | None = None,
    *,
    proximal_weight: float = 1e-3,
    unit_rows: bool = True,
    rounds: int = ROUNDS,
    solver: Solver | None = None,
    first_step: bool | Tensor = False,
) -> NearestFrame:
    r"""Returns the frame nearest to class means for any number of classes and dimensions, differentiable in the means.

    For num_classes <= feature_dim + 1 it is the simplex ETF of `nearest_etf`. For more classes it is a tight frame,

    $$
    W = \sqrt{C/d} \; U^\top, \qquad
    U = \operatorname{polar}\left(\tfrac{2}{\sqrt d} \tilde H P + \delta U_{\text{prox}}\right), \qquad
    W^\top W = \tfrac{C}{d} I,
    $$

    the global minimizer; its rows sum to zero, and their squared norms average 1. With `unit_rows`, each row has norm 1. The
    problem with unit rows has no closed form and may have many local minima; rounds of projected gradient ascent find one close to
    the minimizer above. The result is then tight and centered up to a defect that more rounds reduce, except that frames with
    num_classes = feature_dim + 2 or feature_dim = 1 cannot be centered. Classes with equal means keep equal rows, unless a
    proximal point separates them; the gradient that would separate them is limited in size.

    Without a proximal point, or with weight 0, directions that the means leave open are taken from the limit as the proximal
    weight tends to 0, with `proximal_basis` or, if None, the canonical frame of `tight_frame` as the proximal point. Classes whose
    mean is zero start the rounds from their row of the proximal frame. If all means are zero, the solution before the rounds is the
    proximal point.

    Args:
        centered_class_means: (num_classes, feature_dim), as for `nearest_etf`.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant: the `basis` of an earlier solution. For
            num_classes > feature_dim + 1 it is sqrt(d/C) W' of a tight frame W.
        proximal_weight, first_step: as for `nearest_etf`.
        unit_rows: whether every row has norm 1. No effect on a simplex ETF, whose rows always have norm 1.
        rounds: number of rounds toward unit rows with a pull toward the means; twice as many rounds without this pull follow.
        solver: as for `nearest_etf`; also used in the rounds.

    Returns:
        A `NearestFrame`; its `basis`, `weight` and `distance` are differentiable in the means. With unit rows, gradients flow
        through the rounds.

    Raises:
        TypeError, ValueError: as for `nearest_etf`, except that every size is valid; also for a negative number of rounds.

    Example:
        >>> import torch
        >>> from guided_collapse.geometry import nearest_frame
        >>> means = torch.randn(12, 3, requires_grad=True)
        >>> found = nearest_frame(means - means.mean(dim=0))
        >>> found.weight.norm(dim=1).allclose(torch.ones(12))
        True
        >>> found.distance.backward()
    """
    means = checked_means(centered_class_means, proximal_basis, proximal_weight)
    num_classes, feature_dim = means.shape
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    if rounds < 0:
        raise ValueError(f"rounds must not be negative; got {rounds}.")
    if has_simplex_etf(feature_dim, num_classes):
        return nearest_etf(means, proximal_basis, proximal_weight=proximal_weight, solver=solver, first_step=first_step)
    if proximal_basis is None:
        columns = harmonic_columns(feature_dim, num_classes, dtype=means.dtype)
        proximal_basis, proximal_weight = columns.to(means.device).T, 0.0
    with without_autocast(means.device):
        columns, proximal, values = solve(means, proximal_basis, proximal_weight, solver, first_step)
        if not unit_rows:
            return NearestFrame(columns.T, math.sqrt(num_classes / feature_dim) * columns, means, values)
        target = centered_unit(means) * (2 / math.sqrt(feature_dim)) + proximal_weight * proximal
        target = torch.where(torch.linalg.vector_norm(target) > 0, target, proximal)
        # After centering, all classes without a mean have equal rows.
        has_mean = (means != 0).any(dim=1, keepdim=True)
        columns, chosen = torch.where(has_mean, columns, proximal), checked_solver(solver, means.device)
        weight = with_unit_rows(columns, target, proximal, has_mean, rounds=rounds, solver=chosen)
        return NearestFrame(weight.T * math.sqrt(feature_dim / num_classes), weight, means, values)


def with_unit_rows(columns: Tensor, target: Tensor, fallback: Tensor, has_mean: Tensor, *, rounds: int, solver: Solver) -> Tensor:
    """Returns a nearly tight frame with unit rows close to the target: the result of rounds with, then without, a pull toward it.

    The first rounds are steps of projected gradient ascent on <V, T>: V <- polar(P (N(V) + pull T)), where N normalizes the rows
    and P centers them if possible. These rounds converge to rows of unequal norms, and equalizing the norms afterward leads away
    from the target. So after FEW_ROUNDS every row gets a scale, which offsets the effect of the pull on its length:

        s_i <- s_i / (|v_i| sqrt(C/d)),      V <- polar(P (s_i v_i / |v_i| + pull t_i)).

    If a fixed point W of these rounds has unit rows, it satisfies pull T = W S - diag(s) W + 1 m' for some m and a symmetric S. For
    any pull, these are the conditions for W to be a stationary point of <W, T> among tight, centered frames with unit rows.

    Rounds without a pull are the alternating projections of Tropp, Dhillon, Heath and Strohmer (2005), which only make the frame
    tight. They work on the smaller of two sides: the columns V, or orthonormal columns E that complete V (and the all-ones
    vector 1, for centered frames) to a basis of R^C. The rows of V have equal norms exactly when the rows of E do, and a round
    multiplies the defect by about the number of columns over C: at most a half on the smaller side. E is never formed. Let D be
    diagonal with the row norms of E, D^2 = 1 - |v|^2 (minus 1/C if V is centered). The orthogonal complement of D^-1 E is the span
    of D V. If D^-1 E is centered, its complement is the part of the span of D V and D 1 that sums to zero.

    Args:
        columns: V, (num_classes, feature_dim), orthonormal columns.
        target: T, (num_classes, feature_dim), nonzero, of any scale.
        fallback: (num_classes, feature_dim); its rows replace those of V that are zero.
        has_mean: (num_classes, 1), False for classes that start from their row of `fallback`.
        rounds: number of rounds with a pull; twice as many rounds without a pull follow.
        solver: the solver for the polar factors.
    """
    num_classes, feature_dim = columns.shape
    centered = can_be_centered(feature_dim, num_classes)
    num_spare = num_classes - feature_dim - centered
    usual_norm = math.sqrt(feature_dim / num_classes)
    groups = torch.empty(0, dtype=torch.int64, device=columns.device)
    # The few rounds of a training step do not separate equal rows, and neither do rounds with the solver "products".
    if rounds > FEW_ROUNDS and solver == "factors":
        groups = _groups_of_equal_rows(torch.where(has_mean, target, fallback).detach())
        if is_plain(columns) and int(groups.max()) == num_classes - 1:
            groups = groups[:0]

    def orthonormal(rows: Tensor) -> Tensor:
        rows = center_classes(rows) if centered else rows
        return _polar_columns(rows, groups)[0] if solver == "factors" else _polar_by_products(rows)

    target = target * (math.sqrt(num_classes) / torch.linalg.vector_norm(target))
    norms = torch.linalg.vector_norm(columns.detach(), dim=1, keepdim=True)
    columns = torch.where(norms > torch.finfo(columns.dtype).eps ** 0.75 * usual_norm, columns, fallback)
    for _ in range(min(rounds, FEW_ROUNDS)):
        columns = orthonormal(_unit(columns) + PULL * target)
    scales = columns.new_ones(num_classes, 1)
    for _ in range(rounds - FEW_ROUNDS):
        norms = torch.linalg.vector_norm(columns, dim=1, keepdim=True)
        scales = scales / norms * usual_norm
        columns = orthonormal(scales / norms * columns + SETTLING_PULL * target)
    for _ in range(2 * rounds):
        if num_spare >= feature_dim:
            columns = orthonormal(_unit(columns))
            continue
        spare = 1 - centered / num_classes - columns.square().sum(dim=1, keepdim=True)
        norms = spare.clamp(min=LEAST_SPARE_SHARE * num_spare / num_classes).sqrt()
        rows = norms * columns
        columns = orthonormal(rows - norms * (rows.sum(dim=0) / norms.sum()) if centered else rows)
    return _unit(columns)


def can_be_centered(feature_dim: int, num_classes: int) -> bool:
    """Returns whether the rounds can keep the frame centered, for num_classes > feature_dim + 1.

    The rounds cannot do so in one dimension, where unit rows are +1 or -1, or for num_classes = feature_dim + 2. In the latter
    case, a single column completes a centered frame and the all-ones vector to a basis of R^C, and unit rows require that all
    entries of this column be +1 or -1, up to a common factor. An odd number of signs never sums to zero; with an even number, the
    rounds do not flip signs to bring the sum to zero.
    """
    return feature_dim > 1 and num_classes > feature_dim + 2


def _unit(columns: Tensor) -> Tensor:
    return functional.normalize(columns, dim=1, eps=torch.finfo(columns.dtype).tiny)


def _groups_of_equal_rows(rows: Tensor) -> Tensor:
    """Returns the group index of each row, (num_rows,); rows that are equal up to rounding errors are in the same group."""
    directions = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device).sqrt()
    order = (rows * directions).sum(dim=1).argsort()
    ordered = rows[order]
    tolerance = 8 * torch.finfo(rows.dtype).eps * rows.abs().max()
    starts = ((ordered[1:] - ordered[:-1]).abs() > tolerance).any(dim=1)
    return torch.zeros_like(order).scatter(0, order, functional.pad(starts.cumsum(0), (1, 0)))


def _averaged(rows: Tensor, groups: Tensor) -> Tensor:
    """Returns the rows, each replaced by the mean of its group."""
    sums = torch.zeros_like(rows).index_add_(0, groups, rows)
    return (sums / groups.bincount(minlength=len(rows)).clamp(min=1)[:, None])[groups]


def _polar_by_products(matrix: Tensor) -> Tensor:
    """Returns the polar factor of a tall matrix, from matrix products alone; differentiable any number of times."""
    constant = matrix.detach()
    gram = product(constant.T, constant)
    # An upper bound on the eigenvalues.
    bound = torch.minimum(gram.trace(), torch.linalg.matrix_norm(gram, ord=torch.inf)).clamp(min=torch.finfo(gram.dtype).tiny)
    return polar_by_products((matrix / bound.sqrt()).T, polynomials=ROUND_POLYNOMIALS).T


def _polar_columns_forward(matrix: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the polar factor V of Y = V S, V'V = I, and the eigenvalues and eigenvectors of S.

    Y is well-conditioned, because its columns were orthonormal before its rows were normalized, so forming the Gram matrix loses no
    accuracy. Rows of a group are equal up to rounding errors, which the rounds would amplify; averaging the rows keeps them equal.
    """
    with without_autocast(matrix.device):
        squares, rotation = torch.linalg.eigh(matrix.T @ matrix)
        values = squares.clamp(min=torch.finfo(matrix.dtype).eps * float(squares[-1])).sqrt_()
        columns = matrix @ (rotation / values @ rotation.T)
        return _averaged(columns, groups) if len(groups) else columns, values, rotation.contiguous()


def _polar_columns_backward(grad: Tensor, columns: Tensor, values: Tensor, rotation: Tensor, groups: Tensor) -> Tensor:
    with without_autocast(grad.device):
        together = _averaged(grad, groups) if len(groups) else grad
        factors = Factors(rotation, values, rotation.T @ columns.T, len(values))
        grad_matrix = polar_gradient(together.T, factors, values, columns.T).T.contiguous()
        if len(groups):
            # If equal rows keep the frame from being tight, every round amplifies the gradient of their difference.
            apart = (grad - together) @ (rotation / values @ rotation.T)
            ratio = torch.linalg.vector_norm(grad_matrix) / torch.linalg.vector_norm(apart).clamp(min=torch.finfo(grad.dtype).tiny)
            grad_matrix += apart * (LARGEST_SHARE_APART * ratio).clamp(max=1)
        return grad_matrix


_polar_columns = DifferentiableOperation(
    "polar_columns",
    _polar_columns_forward,
    lambda matrix, groups: (
        matrix.new_empty(matrix.shape),
        matrix.new_empty(matrix.shape[1]),
        matrix.new_empty(2 * matrix.shape[1:]),
    ),
    lambda inputs, outputs: (*outputs, inputs[1]),
    _polar_columns_backward,
    way_out="Detach the frame in the part of the loss that is differentiated twice.",
)


def tight_frame(
    feature_dim: int,
    num_classes: int,
    *,
    direction: Direction = "canonical",
    unit_rows: bool = True,
    rounds: int = ROUNDS_OF_FIXED_FRAMES,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns a fixed frame W, (num_classes, feature_dim): a simplex ETF where one exists, otherwise a tight frame.

    Args:
        feature_dim: d, at least 1.
        num_classes: C, at least 2.
        direction: "canonical" for the direction of `frame_basis` or, for num_classes > feature_dim + 1, the harmonic frame of sines
            and cosines; "random" for a Haar-random direction.
        unit_rows: whether every row has norm 1, achieved by the rounds of `nearest_frame`. Harmonic frames with an even feature_dim
            or an even num_classes have unit rows without any rounds.
        rounds: as for `nearest_frame`.
        generator: for a random direction; if None, torch's global generator.
        dtype: of the result; if None, torch's default.

    Example:
        >>> from guided_collapse.geometry import tight_frame
        >>> [[round(value, 4) + 0.0 for value in row] for row in tight_frame(2, 4).tolist()]
        [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]]
    """
    check_num_classes(num_classes)
    check_feature_dim(feature_dim)
    check_direction(direction)
    if has_simplex_etf(feature_dim, num_classes):
        return frame_weight(frame_basis(feature_dim, num_classes, direction=direction, generator=generator, dtype=dtype))
    dtype = dtype or torch.get_default_dtype()
    computed = torch.promote_types(dtype, torch.float32)
    if direction == "random":
        gaussian = torch.randn(num_classes, feature_dim, generator=generator, dtype=computed)
        return nearest_frame(center_classes(gaussian), unit_rows=unit_rows, rounds=rounds).weight.to(dtype)
    columns = harmonic_columns(feature_dim, num_classes, dtype=computed)
    if unit_rows and feature_dim % 2 and num_classes % 2:
        return nearest_frame(columns, rounds=rounds).weight.to(dtype)
    return (math.sqrt(num_classes / feature_dim) * columns).to(dtype)


def harmonic_columns(feature_dim: int, num_classes: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Returns orthonormal columns that sum to zero, (num_classes, feature_dim): multiples of cosines and sines, for d <= C - 2.

    Before normalization, entry c of a column is cos(2 pi f c / C) or sin(2 pi f c / C) with an integer frequency f. Multiplied by
    sqrt(C/d), the columns are a tight frame. Its rows have norm 1 if d or C is even; if d is odd and C is even, the last column is
    (-1)^c. If both are odd, the last column is a cosine without its sine, and only the mean of the squared row norms is 1.

    Frequencies are chosen in the order of f^2 times the golden ratio mod 1, which spreads them over the available range. The lowest
    frequencies would place neighboring classes next to each other, and equally spaced frequencies would repeat rows.
    """
    available = torch.arange(1, (num_classes - 1) // 2 + 1)
    spread = (available.double().square() * ((1 + math.sqrt(5)) / 2)).frac().argsort()
    order = available[spread].tolist()
    frequencies, num_pairs = order[: (feature_dim + 1) // 2], feature_dim // 2
    # Rows repeat if C and all frequencies share a divisor. The frequency of a cosine without its sine does not count, because such
    # a cosine is equal for some classes anyway.
    alternating = [num_classes // 2] if feature_dim % 2 and num_classes % 2 == 0 else []
    shared = math.gcd(num_classes, *frequencies[1:num_pairs], *alternating)
    if num_pairs and math.gcd(shared, frequencies[0]) > 1:
        frequencies[0] = next(each for each in order if each not in frequencies and math.gcd(shared, each) == 1)
    classes = torch.arange(num_classes)
    # Integers modulo C are exact; large angles would be rounded.
    angles = (classes[:, None] * torch.tensor(frequencies) % num_classes).double() * (2 * math.pi / num_classes)
    columns = [angles[:, :num_pairs].cos(), angles[:, :num_pairs].sin()]
    if feature_dim % 2:
        signs = (1 - 2 * (classes % 2)).double()[:, None] / math.sqrt(2)
        columns.append(signs if alternating else angles[:, num_pairs:].cos())
    return (math.sqrt(2 / num_classes) * torch.cat(columns, dim=1)).to(dtype or torch.get_default_dtype())


def rounds_in_training(feature_dim: int, num_classes: int) -> int:
    """Returns the number of rounds in a training step.

    This many rounds keep the tightness defect of a frame at about 1e-3 for 50 or more classes, and at about 1e-2 for ten classes.
    Every round multiplies the defect by about d/C or less.
    """
    return 1 if num_classes >= MANY_CLASSES * feature_dim else FEW_ROUNDS


def default_every(feature_dim: int, num_classes: int) -> int:
    """Returns the number of steps between updates of a lagged frame: 1 for a simplex ETF, otherwise more if updates are costly.

    The result is at most 1000. Up to this limit, updates take at most a tenth of the operations of training, estimated as follows:
    an update with r rounds takes 4 C d^2 (1 + 3 r) operations; a training step has a batch of 128 samples, and each sample takes
    4 C d operations in the head and 6e7 in a small network. For example, the result is 1 for 1000 classes and 128 features, 14 for
    1000 classes and 512 features, and 51 for 100,000 classes and 256 features.
    """
    if has_simplex_etf(feature_dim, num_classes):
        return 1
    move = 4 * num_classes * feature_dim**2 * (1 + 3 * rounds_in_training(feature_dim, num_classes))
    step = 128 * (4 * num_classes * feature_dim + 6 * 10**7)
    return min(math.ceil(move / (0.1 * step)), 1000)
