"""Class statistics: counts, class means and within-class scatter, from all features at once or merged from batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from guided_collapse.geometry.operations import float32_is_float32

GlobalMean = Literal["samples", "classes"]

CHUNK_ENTRIES = 2**20
"""How many entries are processed at a time: 4 MB in float32, so that they stay in the cache."""
UNCERTAIN_SCATTER = 1000 * torch.finfo(torch.float32).eps
"""A direction with less scatter than this, relative to its dimensions, can be all rounding error in a sum of float32 products."""
UNCERTAIN_RANK = 1e-4
"""How much of the nuclear norm may come from singular values that drown in rounding errors."""
COLUMN_BLOCKS = 4


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Counts, means and scatter of each class. Classes without samples have no mean and no row."""

    counts: Tensor
    """(num_classes,), int64."""
    class_means: Tensor
    """(num_present, feature_dim), float64, the means of the classes that have samples, in order."""
    scatter: Tensor
    """sum over samples of (h - mu_c)(h - mu_c)', (feature_dim, feature_dim), float64."""
    class_scatter: Tensor
    """sum over the samples of a class of |h - mu_c|^2, (num_present,), float64."""
    numerical_ranks: Tensor | None = None
    """|H_c|_*^2 / |H_c|_F^2, (num_present,), float64; None if the features of a class were never together."""

    @property
    def present(self) -> Tensor:
        """The classes that have samples, (num_present,)."""
        return self.counts.nonzero().flatten()

    @property
    def rounding(self) -> Tensor:
        """The size of rounding errors of class means and of deviations from them in each dimension, (feature_dim,)."""
        return 64 * torch.finfo(torch.float64).eps * self.class_means.abs().amax(dim=0)

    @property
    def num_samples(self) -> int:
        """N."""
        return int(self.counts.sum())

    def global_mean(self, kind: GlobalMean) -> Tensor:
        """mu_G, (feature_dim,): the mean of all samples, or of the class means."""
        if kind == "classes":
            return self.class_means.mean(dim=0)
        return (self.counts[self.present].to(torch.float64) / self.num_samples) @ self.class_means


def check_global_mean(kind: GlobalMean) -> None:
    """Refuses an unknown kind of global mean."""
    if kind not in get_args(GlobalMean):
        raise ValueError(f"global_mean must be one of {', '.join(get_args(GlobalMean))}; got {kind!r}.")


def where_float64_is(tensor: Tensor) -> Tensor:
    """The tensor without its gradient, on the CPU if its device does not compute in float64, as Apple's does not."""
    return tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()


def class_statistics(features: Tensor, labels: Tensor, num_classes: int) -> ClassStatistics:
    """Computes the statistics of features (num_samples, feature_dim) with labels (num_samples,), all at hand.

    Outer products of deviations have the features' own precision, at least float32, and are summed in float64: for float32 features
    the scatter is right to 1e-6 of its largest direction, however small it is compared with the means. If that leaves directions
    with hardly any scatter uncertain, everything is repeated in float64.
    """
    features = where_float64_is(features)
    labels = labels.to(features.device, torch.int64)
    counts = torch.bincount(labels, minlength=num_classes)
    _check_enough_classes(counts)
    samples = torch.split(torch.argsort(labels, stable=True), counts[counts > 0].tolist())
    dtype = product_dtype(features)
    with torch.autocast(features.device.type, enabled=False):
        found = _statistics(features, counts, samples, dtype)
        if dtype != torch.float64 and _is_nearly_singular(found.scatter, UNCERTAIN_SCATTER):
            return _statistics(features, counts, samples, torch.float64)
        return found


def _statistics(features: Tensor, counts: Tensor, samples: Sequence[Tensor], dtype: torch.dtype) -> ClassStatistics:
    """The statistics with products in `dtype`; `samples` holds the row indices of each class that has any."""
    feature_dim = features.shape[1]
    scatter = torch.zeros(feature_dim, feature_dim, dtype=torch.float64, device=features.device)
    means, squares, ranks = [], [], []
    for group in _groups(samples, feature_dim):
        sizes = [len(indices) for indices in group]
        classes = torch.arange(len(group), device=features.device).repeat_interleave(torch.tensor(sizes, device=features.device))
        deviations = features[torch.cat(group)].to(dtype)
        group_means = _center_by_class(deviations, classes, len(group))
        group_scatter = torch.zeros_like(scatter)
        for part in torch.split(deviations, chunk_rows(feature_dim)):
            add_outer_products(group_scatter, part)
        means.append(group_means)
        squares.append(_sums_of_squares(deviations, classes, len(group)))
        if sizes[0] < feature_dim:
            for own, mean in zip(torch.split(deviations.to(torch.float64), sizes), group_means, strict=True):
                along = own @ mean
                ranks.append(_numerical_rank(_singular_values(own @ own.T + along[:, None] + along + mean @ mean)))
        else:
            # The scatter is the smaller Gram matrix, once the mean is added. Its error becomes large by the square root: singular
            # values that vanish come out as sqrt(error), and there may be hundreds of them.
            values = _singular_values(torch.addr(group_scatter, group_means[0], group_means[0], alpha=sizes[0]))
            error = (torch.finfo(dtype).eps * squares[-1]).sqrt()
            if bool((values < error).sum() * error > UNCERTAIN_RANK * values.sum()):
                rows = features[group[0]].to(torch.float64)
                values = _singular_values(rows.T @ rows)
            ranks.append(_numerical_rank(values))
        scatter += group_scatter
    return ClassStatistics(counts, torch.cat(means), symmetrized(scatter), torch.cat(squares), torch.stack(ranks))


def _groups(samples: Sequence[Tensor], feature_dim: int) -> Iterator[list[Tensor]]:
    """Yields the indices of a class of at least feature_dim samples, or of as many smaller ones as fill a chunk."""
    group: list[Tensor] = []
    for indices in samples:
        if group and (len(indices) >= feature_dim or sum(map(len, group)) + len(indices) > chunk_rows(feature_dim)):
            yield group
            group = []
        group.append(indices)
        if len(indices) >= feature_dim:
            yield group
            group = []
    if group:
        yield group


def chunk_rows(feature_dim: int) -> int:
    """How many samples to process at a time: enough that their outer products cost more than adding these up."""
    return max(feature_dim, CHUNK_ENTRIES // feature_dim)


def _center_by_class(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Subtracts the means of their classes from the rows, in place; returns these means, (num_classes, feature_dim), float64."""
    counts = torch.bincount(labels, minlength=num_classes).clamp(min=1)[:, None]
    means = rows.new_zeros(num_classes, rows.shape[1], dtype=torch.float64)
    # The sum behind a mean has a rounding error that can exceed the deviations of a collapsed class. The mean of what is left after
    # the first subtraction corrects it.
    for _ in range(2):
        part = rows.new_zeros(num_classes, rows.shape[1]).index_add_(0, labels, rows) / counts
        rows -= part[labels]
        means += part
    return means


def _sums_of_squares(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """sum |r|^2 over the rows of each class, (num_classes,), float64."""
    squares = torch.linalg.vector_norm(rows, dim=1).to(torch.float64).square()
    return squares.new_zeros(num_classes).index_add_(0, labels, squares)


def _singular_values(gram: Tensor) -> Tensor:
    """Those of the rows or columns whose inner products are in the upper triangle of `gram`."""
    return torch.linalg.eigvalsh(gram, UPLO="U").clamp(min=0).sqrt()


def _numerical_rank(values: Tensor) -> Tensor:
    """|H_c|_*^2 / |H_c|_F^2 from singular values; 0 for a class of zeros."""
    return torch.nan_to_num(values.sum().square() / values.square().sum())


class Moments(NamedTuple):
    """The class statistics of a part of the samples."""

    counts: Tensor
    """(num_classes,), int64."""
    means: Tensor
    """(num_classes, feature_dim), float64; 0 for classes without samples."""
    scatter: Tensor
    """sum (h - mu_c)(h - mu_c)', (feature_dim, feature_dim), float64, upper block triangle only."""
    class_scatter: Tensor
    """sum |h - mu_c|^2 of each class, (num_classes,), float64."""

    def statistics(self) -> ClassStatistics:
        """What the metrics are computed from; raises a ValueError if fewer than two classes have samples."""
        _check_enough_classes(self.counts)
        present = self.counts.nonzero().flatten()
        return ClassStatistics(self.counts.clone(), self.means[present], symmetrized(self.scatter), self.class_scatter[present])


def batch_moments(features: Tensor, labels: Tensor, num_classes: int) -> Moments:
    """The moments of a batch: features (num_samples, feature_dim), labels (num_samples,), int64; there may be no samples."""
    deviations = features.to(torch.float64, copy=True)
    means = _center_by_class(deviations, labels, num_classes)
    scatter = deviations.new_zeros(features.shape[1], features.shape[1])
    add_outer_products(scatter, deviations)
    counts = torch.bincount(labels, minlength=num_classes)
    return Moments(counts, means, scatter, _sums_of_squares(deviations, labels, num_classes))


def merge(left: Moments, right: Moments) -> Moments:
    """The moments of both parts together. Changes `left` in place and returns it.

    For a class with n and m samples whose means differ by delta, the scatter about the common mean is the sum of both scatters plus
    n m/(n+m) delta delta'. All terms are positive semidefinite: nothing cancels.
    """
    classes = right.counts.nonzero().flatten()
    here, there = left.counts[classes].to(torch.float64), right.counts[classes].to(torch.float64)
    differences = right.means[classes] - left.means[classes]
    weighted = differences * (here * there / (here + there)).sqrt()[:, None]
    left.scatter.add_(right.scatter)
    add_outer_products(left.scatter, weighted)
    left.class_scatter.add_(right.class_scatter).index_add_(0, classes, weighted.square().sum(dim=1))
    left.means.index_add_(0, classes, differences * (there / (here + there))[:, None])
    left.counts.add_(right.counts)
    return left


def product_dtype(features: Tensor) -> torch.dtype:
    """The precision of products of features: float32 for float32 and narrower types, else float64.

    If TF32 or bfloat16 may replace float32 (`torch.set_float32_matmul_precision`), with two or three digits, it is always float64.
    """
    narrow = features.dtype != torch.float64 and float32_is_float32() and fits_float32(features)
    return torch.float32 if narrow else torch.float64


def fits_float32(values: Tensor) -> bool:
    """Whether values are of a size that keeps sums of their products in the range of float32."""
    return 1e-12 < float(torch.linalg.vector_norm(values, torch.inf)) < 1e12


def add_outer_products(scatter: Tensor, rows: Tensor) -> None:
    """Adds rows' rows to the upper block triangle of `scatter`, in place; products have the precision of the rows.

    The product is symmetric, so only blocks on and above the diagonal are computed: 5/8 of the multiplications with four blocks.
    `symmetrized` fills in the rest once the sum is complete.
    """
    width = -(-len(scatter) // COLUMN_BLOCKS)
    for start in range(0, len(scatter), width):
        block, left, right = scatter[start : start + width, start:], rows[:, start : start + width].T, rows[:, start:]
        if rows.dtype == scatter.dtype:
            block.addmm_(left, right)
        else:
            block.add_(left @ right)


def symmetrized(scatter: Tensor) -> Tensor:
    """The symmetric matrix with this upper triangle, (feature_dim, feature_dim)."""
    return scatter.triu() + scatter.triu(1).T


def _is_nearly_singular(scatter: Tensor, tolerance: float) -> bool:
    """Whether some direction has less than `tolerance` of the scatter it would have if its dimensions were independent."""
    units = torch.where(scatter.diagonal() > 0, scatter.diagonal().rsqrt(), 0)
    correlations = scatter * units * units[:, None]
    correlations.diagonal().fill_(1 - tolerance)
    return bool(torch.linalg.cholesky_ex(correlations).info)


def _check_enough_classes(counts: Tensor) -> None:
    present = int((counts > 0).sum())
    if present < 2:
        raise ValueError(
            f"at least two classes must have samples, because collapse compares classes; got samples of {present} of {len(counts)} "
            "classes. Measure on more data."
        )
