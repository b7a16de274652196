"""Functions of earlier heads, in terms of `nearest_frame`."""

import math

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import Solver, checked_solver
from guided_collapse.geometry.operations import operation
from guided_collapse.geometry.products import vanishing_pull
from guided_collapse.geometry.simplex import frame_weight, has_simplex_etf
from guided_collapse.geometry.tight import default_every as default_every
from guided_collapse.geometry.tight import nearest_frame, rounds_in_training


def weight_of(basis: Tensor) -> Tensor:
    feature_dim, num_classes = basis.shape
    return frame_weight(basis) if has_simplex_etf(feature_dim, num_classes) else math.sqrt(num_classes / feature_dim) * basis.T


def usual_size(means: Tensor, seen: Tensor) -> Tensor:
    return torch.linalg.vector_norm(means) / seen.sum(dtype=means.dtype).clamp(min=1).sqrt()


def with_unseen(means: Tensor, frame: Tensor, seen: Tensor, size: Tensor) -> Tensor:
    return torch.where(seen[:, None], means, size * frame)


def next_basis(means: Tensor, basis: Tensor, is_first: bool | Tensor, *, proximal_weight: float, solver: Solver | None) -> Tensor:
    rounds = rounds_in_training(means.shape[1], len(means))
    found = nearest_frame(means, basis, proximal_weight=proximal_weight, rounds=rounds, solver=solver, first_step=is_first)
    return found.basis


@torch.no_grad()
def next_tight_frame(
    means: Tensor, frame: Tensor, seen: Tensor, *, is_first: bool, proximal_weight: float, solver: Solver | None
) -> Tensor:
    num_classes, feature_dim = frame.shape
    vanishing = vanishing_pull(feature_dim + 1, proximal_weight)
    weight = vanishing if is_first else max(proximal_weight, vanishing)
    means = with_unseen(means, frame, seen, usual_size(means, seen)).to(frame.dtype)
    if not torch.isfinite(means).all():
        return frame.clone()
    proximal = frame.T * math.sqrt(feature_dim / num_classes)
    rounds = rounds_in_training(feature_dim, num_classes)
    return nearest_frame(means, proximal, proximal_weight=weight, rounds=rounds, solver=solver).weight.contiguous()


def frame_when_due(
    means: Tensor, frame: Tensor, seen: Tensor, steps: Tensor, *, every: int, proximal_weight: float, solver: Solver | None
) -> Tensor:
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
