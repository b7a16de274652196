"""A slow, obvious oracle for the nearest tight frame with unit rows: Riemannian gradient ascent from many random starts.

Steps follow the tangential part of the gradient and return to the constraints by Gauss-Newton corrections, without polar factors.
"""

import torch


def constraints(frames):
    """Residuals of unit rows, tightness (the last diagonal entry follows from the norms) and rows that sum to zero."""
    _, num_classes, feature_dim = frames.shape
    first, second = torch.triu_indices(feature_dim, feature_dim)[:, :-1]
    products = (frames.mT @ frames)[:, first, second] - num_classes / feature_dim * (first == second)
    return torch.cat([frames.square().sum(2) - 1, products, frames.sum(1)], dim=1)


def derivatives(frames):
    """Jacobian of the constraints, (num_frames, num_constraints, num_classes * feature_dim)."""
    num_frames, num_classes, feature_dim = frames.shape
    first, second = torch.triu_indices(feature_dim, feature_dim)[:, :-1]
    rows, pairs, columns = torch.arange(num_classes), num_classes + torch.arange(len(first)), torch.arange(feature_dim)
    found = frames.new_zeros(num_frames, num_classes + len(first) + feature_dim, num_classes, feature_dim)
    found[:, rows, rows] = 2 * frames
    found[:, pairs, :, first] += frames[:, :, second].permute(2, 0, 1)
    found[:, pairs, :, second] += frames[:, :, first].permute(2, 0, 1)
    found[:, -feature_dim + columns, :, columns] = 1
    return found.flatten(2)


def along_constraints(jacobian, values):
    """The least-norm change that changes the constraints by these values, (num_frames, num_classes * feature_dim)."""
    products = jacobian @ jacobian.mT
    # The constraints are dependent if a frame splits into two orthogonal parts.
    products.diagonal(dim1=1, dim2=2).add_(1e-12 * products.diagonal(dim1=1, dim2=2).mean())
    return (jacobian.mT @ torch.cholesky_solve(values[:, :, None], torch.linalg.cholesky(products)))[:, :, 0]


def corrected(frames, times):
    for _ in range(times):
        frames = frames - along_constraints(derivatives(frames), constraints(frames)).view_as(frames)
    return frames


def tangent(frames, target):
    gradient, jacobian = target.expand_as(frames).flatten(1), derivatives(frames)
    return (gradient - along_constraints(jacobian, (jacobian @ gradient[:, :, None])[:, :, 0])).view_as(frames)


def ascended(frames, target, *, steps):
    """Stationary frames of <W, T>, with Barzilai-Borwein step sizes; steps that do not improve are rejected."""
    frames = corrected(frames, 12)
    sizes, values, gradients = frames.new_full((len(frames),), 0.3), (frames * target).sum((1, 2)), tangent(frames, target)
    for _ in range(steps):
        squares = gradients.square().sum((1, 2))
        if float(squares.max()) < 1e-14:
            break
        tried = corrected(frames + sizes[:, None, None] * gradients, 4)
        reached = (tried * target).sum((1, 2))
        is_better = (constraints(tried).abs().amax(1) < 1e-9) & (reached >= values + 1e-4 * sizes * squares)
        new = tangent(tried, target)
        change, bend = (tried - frames).flatten(1), (new - gradients).flatten(1)
        next_sizes = (change.square().sum(1) / (change * bend).sum(1).abs().clamp(min=1e-30)).clamp(1e-3, 20)
        sizes = torch.where(is_better, next_sizes, sizes / 4)
        values = torch.where(is_better, reached, values)
        frames = torch.where(is_better[:, None, None], tried, frames)
        gradients = torch.where(is_better[:, None, None], new, gradients)
    return frames


def near_frames(num_frames, num_classes, feature_dim):
    """Random starting points close to unit-norm tight frames."""
    frames = torch.randn(num_frames, num_classes, feature_dim, dtype=torch.float64)
    for _ in range(100):
        frames = frames / frames.norm(dim=2, keepdim=True)
        left, _, right = torch.linalg.svd(frames - frames.mean(1, keepdim=True), full_matrices=False)
        frames = left @ right
    return frames * (num_classes / feature_dim) ** 0.5


def restart_costs(means, *, restarts, steps=400):
    """|H~ - W/sqrt(C)|^2 of the frames that random starts reach, (restarts,)."""
    target = means * (len(means) ** 0.5 / means.norm())
    frames = ascended(near_frames(restarts, *means.shape), target, steps=steps)
    assert float(constraints(frames).abs().max()) < 1e-7
    return (target - frames).square().sum((1, 2)) / len(means)
