"""The next frame of a training run with many classes, in blocks of rows: nothing but the new frame is as large as the old one.

It is what `nearest_frame` gives for the same means, proximal point, weight and rounds, while these are few, without a gradient. A
round is one pass over the rows: the small matrix that makes the columns orthonormal is applied, rows are changed one by one, and
their products are summed for the next pass.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from guided_collapse.geometry.nearest import Solver
from guided_collapse.geometry.solvers.exact_products import product, without_autocast
from guided_collapse.geometry.solvers.nearest_by_products import polynomials_of, vanishing_pull
from guided_collapse.geometry.solvers.products import OddPolynomial
from guided_collapse.geometry.tight.roots import (
    inverse_square_root,
    largest_value_bound,
    polar_root_by_products,
    round_polynomials,
)
from guided_collapse.geometry.tight.rounds import to_unit_rows
from guided_collapse.geometry.tight.unit_rows import PULL, can_be_centered, evens_by_spare_rows, spare_norms

# So many numbers are worked on at once.
BLOCK_NUMBERS = 2**20

# After so many polynomials a Gram matrix is computed anew, before rounding errors have grown to what matters.
POLYNOMIALS_AT_ONCE = 6

Change = Callable[[Tensor, slice], Tensor | None]
"""Changes a block of rows in place, and returns their weights in the mean that is to be taken away, (num_rows, 1); None for 1."""


@torch.no_grad()
def next_frame(
    means: Tensor, frame: Tensor, seen: Tensor, *, is_first: bool, proximal_weight: float, rounds: int, solver: Solver
) -> Tensor:
    """The unit-norm tight frame nearest to the means, pulled toward the one before.

    The first solve has no pull. It is found with one of a thousandth of the means' share, as by products everywhere, and so
    is one with a weight of 0.

    Args:
        means: (num_classes, feature_dim), class means of any scale, num_classes > feature_dim + 1.
        frame: (num_classes, feature_dim), the frame before, or the initial one.
        seen: (num_classes,), which classes have a mean; those of the others are put where the frame has them.
        is_first: whether the frame is the initial one.
        proximal_weight: delta.
        rounds: as in `nearest_frame`, FEW_ROUNDS at most: rows have no scales here.
        solver: "factors" takes eigenvectors where it has to. "products" never waits for a device, and needs no float64.

    Returns:
        (num_classes, feature_dim), a new tensor; the frame before, if the means are not finite.
    """
    num_classes, feature_dim = frame.shape
    vanishing = vanishing_pull(feature_dim + 1, proximal_weight)
    weight = vanishing if is_first else max(proximal_weight, vanishing)
    with without_autocast(frame.device):
        passes = _Passes(frame, solver)
        target = _Target(means, frame, seen, weight, passes.blocks)
        passes.begin(target)
        target_scale = math.sqrt(num_classes) / passes.sums.products.trace().sqrt().to(frame.dtype)
        centered, by_spare_rows = can_be_centered(num_classes, feature_dim), evens_by_spare_rows(num_classes, feature_dim)

        def unit(rows: Tensor, block: slice) -> None:
            to_unit_rows(rows, frame[block], num_classes=num_classes)

        def pulled(rows: Tensor, block: slice) -> None:
            unit(rows, block)
            rows.add_(target.rows(block).mul_(PULL * target_scale))

        def shrunk(rows: Tensor, block: slice) -> Tensor:
            norms = spare_norms(rows, centered=centered, num_classes=num_classes)
            rows.mul_(norms)
            return norms

        evened: Change = shrunk if by_spare_rows else unit
        changes: list[Change] = [*(rounds * [pulled]), *(2 * rounds * [evened]), unit]
        # The closed form is centered whatever the rounds are.
        passes.orthonormalize(polynomials_of(feature_dim + 1, proximal_weight, frame.dtype), changes[0], centered=True)
        for change in changes[1:]:
            passes.orthonormalize(round_polynomials(), change, centered=centered)
        return passes.finished()


class _Target:
    """X = 2 P H~ / sqrt(d) + delta V_prox, block by block; V_prox are the frame's orthonormal columns."""

    def __init__(self, means: Tensor, frame: Tensor, seen: Tensor, proximal_weight: float, blocks: Sequence[slice]) -> None:
        num_classes, feature_dim = frame.shape
        self.means, self.frame, self.seen = means, frame, seen
        self.size = usual_size(means, seen)
        # So large is the norm of all means together, once those of unseen classes are as large as the others.
        norm = self.size * math.sqrt(num_classes)
        self.share = torch.where(norm > 0, 2 / math.sqrt(feature_dim) / norm, 0.0)
        self.pull = proximal_weight * math.sqrt(feature_dim / num_classes)
        self.mean = torch.stack([self._means(block).sum(dim=0) for block in blocks]).sum(dim=0) / num_classes

    def rows(self, block: slice) -> Tensor:
        data = (self._means(block) - self.mean).mul_(self.share)
        return data.to(self.frame.dtype).add_(self.frame[block], alpha=self.pull)

    def _means(self, block: slice) -> Tensor:
        return with_unseen(self.means[block], self.frame[block], self.seen[block], self.size)


def usual_size(means: Tensor, seen: Tensor) -> Tensor:
    """The root mean square norm of the means of seen classes, a scalar; the others are zero."""
    return torch.linalg.vector_norm(means) / seen.sum(dtype=means.dtype).clamp(min=1).sqrt()


def with_unseen(means: Tensor, frame: Tensor, seen: Tensor, size: Tensor) -> Tensor:
    """The means, and for classes that were not seen the rows of the frame, as large as means are.

    At zero, where there is nothing to tell them from each other, they would be drawn together.
    """
    return torch.where(seen[:, None], means, size * frame)


@dataclass
class _Sums:
    """Sums over rows y, from each of which s m is to be taken away, with a weight s of its own."""

    products: Tensor
    """y'y, (feature_dim, feature_dim)."""
    total: Tensor
    """y, (feature_dim,)."""
    weighted: Tensor
    """s y, (feature_dim,)."""
    weights: Tensor
    """s, a scalar."""
    squared_weights: Tensor
    """s^2, a scalar."""

    def mean(self) -> Tensor:
        """m, (feature_dim,): after which the rows sum to zero."""
        return self.total / self.weights

    def gram(self, mean: Tensor) -> Tensor:
        """The products of y - s m."""
        crossed = torch.outer(self.weighted, mean)
        return self.products - crossed - crossed.T + self.squared_weights * torch.outer(mean, mean)


class _Passes:
    """Passes over the rows of the new frame."""

    def __init__(self, frame: Tensor, solver: Solver) -> None:
        self.frame, self.solver = frame, solver
        self.new = torch.empty_like(frame, memory_format=torch.contiguous_format)
        self.weights: Tensor | None = None
        self.finite = torch.ones((), dtype=torch.bool, device=frame.device)
        self.sums = self._no_sums()
        length = max(1, BLOCK_NUMBERS // frame.shape[1])
        self.blocks = [slice(start, start + length) for start in range(0, len(frame), length)]

    def begin(self, target: _Target) -> None:
        """Puts the target in the place of all rows."""
        for block in self.blocks:
            self.new[block] = target.rows(block)
            # Directions that are left to a small pull show in the last digits of the products alone.
            self._add(self.new[block], None, exact=self.solver == "factors")

    def orthonormalize(self, polynomials: tuple[OddPolynomial, ...], change: Change, *, centered: bool) -> None:
        """Makes the columns orthonormal and centered, then changes the rows."""
        if self.solver == "factors":
            mean = self.sums.mean() if centered else torch.zeros_like(self.sums.total)
            self._apply(mean, inverse_square_root(self.sums.gram(mean)), change)
            return
        for start in range(0, len(polynomials), POLYNOMIALS_AT_ONCE):
            some = polynomials[start : start + POLYNOMIALS_AT_ONCE]
            mean = self.sums.mean() if centered else torch.zeros_like(self.sums.total)
            gram = self.sums.gram(mean)
            # Later ones follow on what the first have made of values up to 1.
            bound = largest_value_bound(gram) if start == 0 else torch.ones_like(gram[0, 0])
            is_last = start + POLYNOMIALS_AT_ONCE >= len(polynomials)
            self._apply(mean, polar_root_by_products(gram / bound, some) / bound.sqrt(), change if is_last else _no_change)

    def finished(self) -> Tensor:
        """The new frame, or the one before if something was not finite."""
        for block in self.blocks:
            torch.where(self.finite, self.new[block], self.frame[block], out=self.new[block])
        return self.new

    def _apply(self, mean: Tensor, root: Tensor, change: Change) -> None:
        self.finite = self.finite & torch.isfinite(root).all() & torch.isfinite(mean).all()
        mean, root = mean.to(self.new.dtype), root.to(self.new.dtype)
        before, after = self.weights, []
        self.sums = self._no_sums()
        for block in self.blocks:
            rows = product(self.new[block] - (mean if before is None else before[block] * mean), root)
            weights = change(rows, block)
            self.new[block] = rows
            self._add(rows, weights)
            after.append(weights)
        kept = [weights for weights in after if weights is not None]
        self.weights = torch.cat(kept) if kept else None

    def _add(self, rows: Tensor, weights: Tensor | None, *, exact: bool = False) -> None:
        rows = rows.to(self.sums.products.dtype) if exact else rows
        total = rows.sum(dim=0)
        self.sums.products += product(rows.T, rows)
        self.sums.total += total
        self.sums.weighted += total if weights is None else (weights * rows).sum(dim=0)
        self.sums.weights += len(rows) if weights is None else weights.sum()
        self.sums.squared_weights += len(rows) if weights is None else weights.square().sum()

    def _no_sums(self) -> _Sums:
        dtype = torch.float64 if self.solver == "factors" else self.new.dtype
        size = self.new.shape[1]
        return _Sums(*(torch.zeros(shape, dtype=dtype, device=self.new.device) for shape in ((size, size), size, size, (), ())))


def _no_change(rows: Tensor, block: slice) -> None:
    """Rows stay as they are."""
