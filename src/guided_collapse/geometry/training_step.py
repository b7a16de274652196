"""The frame of the next training step, from that of the step before, and how often it moves."""

import math

import torch
from torch import Tensor

from guided_collapse.geometry.frames import basis_with_unit_rows, nearest_frame, tight_basis_by_products
from guided_collapse.geometry.nearest import Solver, checked_solver, unit_frobenius_norm
from guided_collapse.geometry.registration import operation
from guided_collapse.geometry.simplex import has_simplex_etf
from guided_collapse.geometry.solvers.nearest_by_products import nearest_basis_by_products, polynomials_of, vanishing_pull
from guided_collapse.geometry.solvers.operations import nearest_basis, proximal_point
from guided_collapse.geometry.tight.refresh import next_frame
from guided_collapse.geometry.tight.unit_rows import FEW_ROUNDS

# From so many classes for each dimension on, one round is enough.
MANY_CLASSES = 16

# What the costs of `default_every` are of.
MOST_STEPS = 1000
BATCH_SIZE = 128
# Of a forward pass and a backward pass through a network of ten million multiplications, which is a small one.
OPERATIONS_PER_SAMPLE = 3 * 2 * 10**7
SHARE_OF_TRAINING = 0.1


def next_basis(means: Tensor, basis: Tensor, is_first: Tensor, *, proximal_weight: float, solver: Solver | None) -> Tensor:
    """The basis U of the frame nearest to the means, pulled toward that of the step before; differentiable in the means.

    The first step solves without the proximal term, from the initial direction. By products its pull is `vanishing_pull`, chosen on
    the device; by factors it is the limit itself.

    Args:
        means: (num_classes, feature_dim), centered class means of any scale, float32 or float64.
        basis: (feature_dim, num_classes), of the step before, or on the first step the initial direction; held constant.
        is_first: a boolean scalar.
        proximal_weight: delta.
        solver: as for `nearest_etf`.

    Returns:
        (feature_dim, num_classes).
    """
    basis = basis.detach().to(means.dtype)
    num_classes, feature_dim = means.shape
    if not has_simplex_etf(feature_dim, num_classes):
        return _next_tight_basis(means, basis, is_first, proximal_weight=proximal_weight, solver=solver)
    if checked_solver(solver, means.device) == "factors":
        return nearest_basis(means, proximal_point(means, basis, is_first), proximal_weight)[0]
    vanishing = vanishing_pull(num_classes, proximal_weight)
    largest = max(proximal_weight, vanishing)
    return nearest_basis_by_products(
        unit_frobenius_norm(means),
        basis,
        torch.where(is_first, vanishing, largest).to(means.dtype),
        proximal_weight=largest,
        polynomials=polynomials_of(num_classes, proximal_weight, means.dtype),
    )


def _next_tight_basis(means: Tensor, basis: Tensor, is_first: Tensor, *, proximal_weight: float, solver: Solver | None) -> Tensor:
    num_classes, feature_dim = means.shape
    rounds = rounds_in_training(num_classes, feature_dim)
    if checked_solver(solver, means.device) == "factors":
        anchor = proximal_point(means, basis, is_first)
        return nearest_frame(means, anchor, proximal_weight=proximal_weight, rounds=rounds, solver="factors").basis
    closed = tight_basis_by_products(
        means, basis, torch.where(is_first, 0.0, proximal_weight).to(means.dtype), proximal_weight=proximal_weight
    )
    return basis_with_unit_rows(closed, means, basis, proximal_weight, rounds=rounds, solver="products")


def rounds_in_training(num_classes: int, feature_dim: int) -> int:
    """How many rounds toward unit rows a training step takes: so many that the frame is tight to 1e-3 from about 50 classes on.

    For ten classes it is tight to about 1e-2. A round leaves a share of the defect that is about d/C, or less.
    """
    return 1 if num_classes >= MANY_CLASSES * feature_dim else FEW_ROUNDS


def next_tight_frame(
    means: Tensor, frame: Tensor, seen: Tensor, *, is_first: bool, proximal_weight: float, solver: Solver | None
) -> Tensor:
    """The next tight frame of a run without gradient, for num_classes > feature_dim + 1; see `next_frame`.

    Args:
        means: (num_classes, feature_dim), class means of any scale.
        frame: (num_classes, feature_dim), of the step before, or the initial one.
        seen: (num_classes,), which classes have a mean.
        is_first: whether it is the initial one.
        proximal_weight: delta.
        solver: as for `nearest_etf`.

    Returns:
        (num_classes, feature_dim), a new tensor.
    """
    return next_frame(
        means,
        frame,
        seen,
        is_first=is_first,
        proximal_weight=proximal_weight,
        rounds=rounds_in_training(*frame.shape),
        solver=checked_solver(solver, frame.device),
    )


def frame_when_due(
    means: Tensor, frame: Tensor, seen: Tensor, steps: Tensor, *, every: int, proximal_weight: float, solver: Solver | None
) -> Tensor:
    """`next_tight_frame` at the steps of `basis_when_due`, and the frame as it is at others; for compiled graphs."""
    return _frame_when_due(means, frame, seen, steps, every, proximal_weight, checked_solver(solver, frame.device))


@operation("frame_when_due")
def _frame_when_due(
    means: Tensor, frame: Tensor, seen: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str
) -> Tensor:
    taken = int(steps)
    if (taken - 1) % every:
        return frame.clone(memory_format=torch.contiguous_format)
    chosen: Solver = "factors" if solver == "factors" else "products"
    return next_tight_frame(means, frame, seen, is_first=taken == 1, proximal_weight=proximal_weight, solver=chosen)


@_frame_when_due.register_fake
def _(means: Tensor, frame: Tensor, seen: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str) -> Tensor:
    return torch.empty_like(frame, memory_format=torch.contiguous_format)


def basis_when_due(
    means: Tensor, basis: Tensor, steps: Tensor, *, every: int, proximal_weight: float, solver: Solver | None
) -> Tensor:
    """`next_basis` at steps 1, 1 + every, 1 + 2 every, ..., and the basis as it is at others; for compiled graphs.

    An operation, because a graph cannot branch on a value. It asks the device for the step.

    Args:
        steps: how many batches were taken in, an integer scalar.
        every: after how many steps the frame moves.
    """
    chosen = checked_solver(solver, means.device)
    return _basis_when_due(means, basis.T, steps, every, proximal_weight, chosen).T


@operation("basis_when_due")
def _basis_when_due(means: Tensor, rows: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str) -> Tensor:
    if (int(steps) - 1) % every:
        return rows.clone(memory_format=torch.contiguous_format)
    chosen: Solver = "factors" if solver == "factors" else "products"
    found = next_basis(means, rows.T, steps == 1, proximal_weight=proximal_weight, solver=chosen)
    return found.T.to(rows.dtype, memory_format=torch.contiguous_format)


@_basis_when_due.register_fake
def _(means: Tensor, rows: Tensor, steps: Tensor, every: int, proximal_weight: float, solver: str) -> Tensor:
    return torch.empty_like(rows, memory_format=torch.contiguous_format)


def default_every(feature_dim: int, num_classes: int) -> int:
    """After how many steps a lagged frame moves: 1 for a simplex ETF, otherwise so many that it costs a tenth of training.

    To move it with r rounds, d x d products are summed over C rows and a d x d matrix is applied to each, 1 + 3 r times:
    4 C d^2 (1 + 3 r) operations. A step of training is taken to be a batch of 128, each sample with 4 C d operations in the head
    and 6e7 in a small network. The result is at most 1000: 1 for 1000 classes and 128 features, 14 for 1000 and 512, 51 for
    100,000 and 256.
    """
    if has_simplex_etf(feature_dim, num_classes):
        return 1
    move = 4 * num_classes * feature_dim**2 * (1 + 3 * rounds_in_training(num_classes, feature_dim))
    step = BATCH_SIZE * (4 * num_classes * feature_dim + OPERATIONS_PER_SAMPLE)
    return min(math.ceil(move / (SHARE_OF_TRAINING * step)), MOST_STEPS)
