"""Frames for any number of classes: a simplex ETF, or where none exists (num_classes > feature_dim + 1) a tight frame.

With C classes in d dimensions a centered frame has rank m = min(d, C-1) at most. For all sizes

    U = polar(2 H~ P / sqrt(m) + delta U_prox),      W = sqrt(C/m) P U'          (H~ and U are d x C, P = I - 11'/C)

minimizes |H~ - W'/sqrt(C)|_F^2 + (delta/2) |U - U_prox|_F^2. For C <= d + 1 it is the paper's problem, m = C - 1 and W a simplex
ETF. For C > d + 1 there is none; there m = d, the rows of U are orthonormal and orthogonal to 1, and W'W = (C/d) I: a tight frame.
At C = d + 1 the two coincide, so delta means the same on either side.
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

# With 40 the tightness defect of Gaussian means was above 1e-3 in one of 3384 cases, 4 classes in 2 dimensions, and above 1e-5 in
# two, of all sizes up to 50 classes. Fixed frames are close to nothing that matters, and only need to be tight.
ROUNDS, ROUNDS_OF_FIXED_FRAMES = 60, 20

# That few rounds are too few for scales to settle. They are enough for a training step, where one is from so many classes per
# dimension on.
FEW_ROUNDS, MANY_CLASSES = 3, 16

# How far a round goes toward the target, whose rows have norm 1 on average as those of the frame have: one of the first rounds, and
# one with scales. For these less is slow, and with twice as much the scales take long to settle.
PULL, SETTLING_PULL = 0.3, 1.0

LEAST_SPARE_SHARE = 1e-2  # the least square of a spare row's norm, as a share of the mean

# Singular values of orthonormal columns whose rows were made even are not further apart than this.
ROUND_POLYNOMIALS = polar_polynomials(0.02)

# The gradient of differences between equal rows is at most this much larger than the rest of the gradient.
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
    """Returns the frame nearest to the class means, for any number of classes and dimensions, differentiable in the means.

    For num_classes <= feature_dim + 1 it is the result of `nearest_etf`. The proximal point is a basis for that reason: the
    paper's problem has a direction that the weight does not show.

    For num_classes > feature_dim + 1 the formula of this file has W'W = (C/d) I exactly, and it is the global minimizer. Its rows
    sum to zero and have norm 1 on average only. With `unit_rows`, each has norm 1, and W is tight and, with the exceptions of
    `can_be_centered`, centered up to a defect that more rounds reduce. That problem has no closed form, and may have many local
    minima: the rounds find one close to the minimizer without unit rows. Classes with equal means keep equal rows, unless a
    proximal point tells them apart; what would separate them gets a gradient of limited size.

    Without a proximal point, or with weight 0, directions that the means leave open are the limit of a vanishing proximal weight,
    toward `proximal_basis` or the canonical frame (`harmonic_columns` for C > d + 1). Unit rows of classes whose mean is zero start
    from their row of it. Means that are all zero determine nothing: the proximal point itself is returned, after the rounds.

    Args:
        centered_class_means: (num_classes, feature_dim), as for `nearest_etf`.
        proximal_basis: U_prox, (feature_dim, num_classes), held constant: the `basis` of an earlier solution. For
            num_classes > feature_dim + 1 it is sqrt(d/C) W' of a tight frame W.
        proximal_weight, solver, first_step: as for `nearest_etf`; the solver is that of the rounds, too.
        unit_rows: whether rows have norm 1. Has no effect on a simplex ETF, whose rows have.
        rounds: toward unit rows: this many with a pull to the means, and twice as many without.

    Returns:
        The solution; `basis`, `weight` and `distance` carry gradient to the means: exact for the closed form, and through the
        rounds for unit rows.

    Raises:
        TypeError, ValueError: as `nearest_etf`, and for a negative number of rounds.

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
        # Centered, classes without a mean would all have the same row.
        has_mean = (means != 0).any(dim=1, keepdim=True)
        columns, chosen = torch.where(has_mean, columns, proximal), checked_solver(solver, means.device)
        weight = with_unit_rows(columns, target, proximal, has_mean, rounds=rounds, solver=chosen)
        return NearestFrame(weight.T * math.sqrt(feature_dim / num_classes), weight, means, values)


def with_unit_rows(columns: Tensor, target: Tensor, fallback: Tensor, has_mean: Tensor, *, rounds: int, solver: Solver) -> Tensor:
    """Returns a frame with unit rows, nearly tight, close to the target: rounds with a pull to it, then twice as many without.

    One of the first rounds is V <- polar(P (N(V) + pull T)): N divides each row by its norm, and P centers the rows if they can
    be. These are steps of projected gradient ascent on <V, T>. Where rows are only divided by their norms between pulls, they come
    to rest uneven, and making them even afterward leads away from the target. So after FEW_ROUNDS each row has a scale, which
    takes up what the pull does to its length:

        s_i <- s_i / (|v_i| sqrt(C/d)),      V <- polar(P (s_i v_i / |v_i| + pull t_i)).

    If such a round leaves W as it is, with unit rows, then pull T = W S - diag(s) W + 1 m' for some m and a symmetric S. These are
    the conditions for W to be stationary for <W, T> among all tight frames with unit rows that sum to zero, whatever the pull.

    Rounds without a pull remove only what is not tight (the alternating projections of Tropp, Dhillon, Heath and Strohmer, 2005).
    They work on the smaller of two sides: columns V, or orthonormal columns E that complete them (and 1, for centered frames) to a
    basis of R^C. Rows of V have equal norms exactly when rows of E have, and a round leaves a share of the defect that is about the
    number of columns over C: at most a half on the smaller side. E itself is not needed. Let D have the norms of its rows,
    D^2 = 1 - |v|^2 (less 1/C if V is centered). What is orthogonal to D^-1 E is the span of D V; and to D^-1 E centered, that part
    of the span of D V and D 1 which sums to zero.

    All are (num_classes, feature_dim): V with orthonormal columns, T of any scale but 0, and `fallback` with rows for those of V
    that are zero. `has_mean`, (num_classes, 1), tells which classes do not start from `fallback`.
    """
    num_classes, feature_dim = columns.shape
    centered = can_be_centered(feature_dim, num_classes)
    num_spare = num_classes - feature_dim - centered
    usual_norm = math.sqrt(feature_dim / num_classes)
    groups = torch.empty(0, dtype=torch.int64, device=columns.device)
    # The few rounds of a training step do not drive equal rows apart, nor does a pull by products.
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
    """Returns whether the rounds keep the rows' sum at zero, for num_classes > feature_dim + 1.

    They do not in one dimension, nor for num_classes = feature_dim + 2. Unit rows are then given by signs, and an odd number of
    signs does not sum to zero, nor do steps between signs lead to a sum of zero if it is even.
    """
    return feature_dim > 1 and num_classes > feature_dim + 2


def _unit(columns: Tensor) -> Tensor:
    return functional.normalize(columns, dim=1, eps=torch.finfo(columns.dtype).tiny)


def _groups_of_equal_rows(rows: Tensor) -> Tensor:
    """Returns a number for each row, (num_rows,), the same for rows that are equal up to rounding."""
    directions = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device).sqrt()
    order = (rows * directions).sum(dim=1).argsort()
    ordered = rows[order]
    tolerance = 8 * torch.finfo(rows.dtype).eps * rows.abs().max()
    starts = ((ordered[1:] - ordered[:-1]).abs() > tolerance).any(dim=1)
    return torch.zeros_like(order).scatter(0, order, functional.pad(starts.cumsum(0), (1, 0)))


def _averaged(rows: Tensor, groups: Tensor) -> Tensor:
    """Returns for each row the mean of its group."""
    sums = torch.zeros_like(rows).index_add_(0, groups, rows)
    return (sums / groups.bincount(minlength=len(rows)).clamp(min=1)[:, None])[groups]


def _polar_by_products(matrix: Tensor) -> Tensor:
    """Returns the polar factor of an upright matrix in a round, by products alone; differentiable any number of times."""
    constant = matrix.detach()
    gram = product(constant.T, constant)
    # No eigenvalue is above this.
    bound = torch.minimum(gram.trace(), torch.linalg.matrix_norm(gram, ord=torch.inf)).clamp(min=torch.finfo(gram.dtype).tiny)
    return polar_by_products((matrix / bound.sqrt()).T, polynomials=ROUND_POLYNOMIALS).T


def _polar_columns_forward(matrix: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns V of Y = V S, with V'V = I, and the eigenvalues and eigenvectors of S.

    What was orthonormal columns before its rows were normalized is so well-conditioned that the Gram matrix loses nothing.
    Rows of a group are equal but for rounding errors, which rounds would drive apart, and stay equal.
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
            # Where equal rows keep a frame from being tight, each round would magnify the gradient of their difference.
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
    """Returns the weight W, (num_classes, feature_dim), of a fixed frame: a simplex ETF where one exists, else a tight frame.

    Args:
        direction: "canonical" is that of `frame_basis`, or for num_classes > feature_dim + 1 the harmonic frame, sines and cosines.
            "random" is Haar-distributed there: the polar factor of a centered Gaussian matrix, whose columns are orthogonal to 1.
        unit_rows: whether each row has norm 1, by the rounds of `nearest_frame`, from a frame whose rows have norm 1 on average. A
            canonical frame has unit rows without them if feature_dim or num_classes is even.
        rounds: as in `nearest_frame`.
        generator: source of the random direction; None takes torch's global generator.

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
    """Returns orthonormal columns that sum to zero, cos(2 pi f c / C) and sin(2 pi f c / C) for whole f; d is at most C - 2.

    Times sqrt(C/d) they are a tight frame. Its rows have norm 1 when d is even, or C is: an odd column is then (-1)^c. When both
    are odd the last column is a cosine alone, and rows have norm 1 on average only.

    The frequencies are spread over all available ones, in the order of f^2 golden ratio mod 1. The lowest ones would put
    neighboring classes next to each other, and equally spaced ones would repeat themselves.
    """
    available = torch.arange(1, (num_classes - 1) // 2 + 1)
    spread = (available.double().square() * ((1 + math.sqrt(5)) / 2)).frac().argsort()
    frequencies = available[spread[: (feature_dim + 1) // 2]]
    classes = torch.arange(num_classes)
    # Whole numbers modulo C are exact, where large angles would be rounded.
    angles = (classes[:, None] * frequencies % num_classes).double() * (2 * math.pi / num_classes)
    num_pairs = feature_dim // 2
    columns = [angles[:, :num_pairs].cos(), angles[:, :num_pairs].sin()]
    if feature_dim % 2:
        alternating = (1 - 2 * (classes % 2)).double()[:, None] / math.sqrt(2)
        columns.append(alternating if num_classes % 2 == 0 else angles[:, num_pairs:].cos())
    return (math.sqrt(2 / num_classes) * torch.cat(columns, dim=1)).to(dtype or torch.get_default_dtype())


def rounds_in_training(feature_dim: int, num_classes: int) -> int:
    """Returns how many rounds toward unit rows a training step takes: a frame of 50 classes or more is then tight to 1e-3.

    For ten classes it is tight to about 1e-2. A round leaves a share of the defect that is about d/C, or less.
    """
    return 1 if num_classes >= MANY_CLASSES * feature_dim else FEW_ROUNDS


def default_every(feature_dim: int, num_classes: int) -> int:
    """Returns after how many steps a lagged frame moves: 1 for a simplex ETF, else so many that it costs a tenth of training.

    Moving it with r rounds takes 4 C d^2 (1 + 3 r) operations. A step of training is assumed to be a batch of 128, each sample with
    4 C d operations in the head and 6e7 in a small network. The result is at most 1000: 1 for 1000 classes and 128 features, 14
    for 1000 and 512, 51 for 100,000 and 256.
    """
    if has_simplex_etf(feature_dim, num_classes):
        return 1
    move = 4 * num_classes * feature_dim**2 * (1 + 3 * rounds_in_training(feature_dim, num_classes))
    step = 128 * (4 * num_classes * feature_dim + 6 * 10**7)
    return min(math.ceil(move / (0.1 * step)), 1000)
