"""What the class-level metrics need to know about the features: counts, class means and within-class scatter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from guided_collapse.metrics.checks import check_enough_classes
from guided_collapse.metrics.formulas.double_precision import where_float64_is
from guided_collapse.metrics.formulas.products import nearly_singular, product_dtype, symmetrized
from guided_collapse.metrics.formulas.within import add_large_class, add_small_classes

GlobalMean = Literal["samples", "classes"]

CHUNK_ENTRIES = 2**20
"""How many entries are worked on at a time: 4 MB in float32, so that they stay near the processor."""
UNCERTAIN_SCATTER = 1000 * torch.finfo(torch.float32).eps
"""A direction with less scatter than this, relative to its dimensions, can be wrong in every digit in a sum of float32 products."""


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Counts, means and scatter of the features of each class. Classes without samples have no mean and no row."""

    counts: Tensor
    """(num_classes,), int64, how many samples each class has."""
    class_means: Tensor
    """(num_present, feature_dim), float64, the means of the classes that have samples, in order."""
    scatter: Tensor
    """sum over samples of (h - mu_c)(h - mu_c)', (feature_dim, feature_dim), float64."""
    class_scatter: Tensor
    """sum over the samples of a class of |h - mu_c|^2, (num_present,), float64."""
    numerical_ranks: Tensor | None = None
    """(num_present,), float64; None where the features of a class were never together."""

    @property
    def present(self) -> Tensor:
        """The classes that have samples, (num_present,)."""
        return self.counts.nonzero().flatten()

    @property
    def missing(self) -> Tensor:
        """The classes that have none, (num_classes - num_present,)."""
        return (self.counts == 0).nonzero().flatten()

    @property
    def rounding(self) -> Tensor:
        """What rounding errors of class means and of deviations from them can amount to in each dimension, (feature_dim,)."""
        return 64 * torch.finfo(torch.float64).eps * self.class_means.abs().amax(dim=0)

    @property
    def num_samples(self) -> int:
        """N."""
        return int(self.counts.sum())

    def global_mean(self, kind: GlobalMean) -> Tensor:
        """mu_G, (feature_dim,): the mean of all samples, or of the class means.

        Raises:
            ValueError: for another kind.
        """
        check_global_mean(kind)
        if kind == "classes":
            return self.class_means.mean(dim=0)
        shares = self.counts[self.present].to(torch.float64) / self.num_samples
        return shares @ self.class_means


def check_global_mean(kind: GlobalMean) -> None:
    """Refuses an unknown kind of global mean."""
    if kind not in get_args(GlobalMean):
        raise ValueError(f"global_mean must be one of {', '.join(get_args(GlobalMean))}; got {kind!r}.")


def class_statistics(features: Tensor, labels: Tensor, num_classes: int) -> ClassStatistics:
    """The statistics of features that are all at hand, from deviations from the class means.

    Outer products of deviations are taken in the features' own precision, at least float32, and summed up in float64: of float32
    features the scatter is right to 1e-6 of its largest direction, however small that is against the means. Where that leaves
    directions with hardly any scatter uncertain, all is done again in float64.

    Args:
        features: (num_samples, feature_dim), finite.
        labels: (num_samples,), class indices below num_classes.
        num_classes: C.

    Raises:
        ValueError: if fewer than two classes have samples.
    """
    features = where_float64_is(features.detach())
    labels = labels.to(features.device, torch.int64)
    counts = torch.bincount(labels, minlength=num_classes)
    check_enough_classes(counts)
    samples = torch.split(torch.argsort(labels, stable=True), counts[counts > 0].tolist())
    dtype = product_dtype(features.dtype)
    with torch.autocast(features.device.type, enabled=False):
        found = _statistics(features, counts, samples, dtype)
        if dtype != torch.float64 and nearly_singular(found.scatter, UNCERTAIN_SCATTER):
            return _statistics(features, counts, samples, torch.float64)
        return found


def _statistics(features: Tensor, counts: Tensor, samples: Sequence[Tensor], dtype: torch.dtype) -> ClassStatistics:
    """The statistics with products in float32 or float64.

    Args:
        features: (num_samples, feature_dim).
        counts: (num_classes,).
        samples: the rows of each class that has any.
        dtype: of the products.
    """
    feature_dim = features.shape[1]
    buffer = features.new_empty(min(len(features), chunk_rows(feature_dim)), feature_dim, dtype=dtype)
    scatter = torch.zeros(feature_dim, feature_dim, dtype=torch.float64, device=features.device)
    found, position = [], 0
    for group in _groups([len(indices) for indices in samples], feature_dim):
        some, position = samples[position : position + group], position + group
        if len(some[0]) >= feature_dim:
            found.append(add_large_class(scatter, features, some[0], buffer))
        else:
            found.append(add_small_classes(scatter, features, some, buffer))
    means, class_scatter, ranks = (torch.cat(parts) for parts in zip(*found, strict=True))
    return ClassStatistics(counts, means, symmetrized(scatter), class_scatter, ranks)


def chunk_rows(feature_dim: int) -> int:
    """How many samples are worked on at a time: so many that their outer products cost more than adding these to the others."""
    return max(feature_dim, CHUNK_ENTRIES // feature_dim)


def _groups(sizes: list[int], feature_dim: int) -> Iterator[int]:
    """How many classes to take at a time: one of at least feature_dim samples, or as many smaller ones as fill a chunk."""
    classes, rows = 0, 0
    for size in sizes:
        if classes > 0 and (size >= feature_dim or rows + size > chunk_rows(feature_dim)):
            yield classes
            classes, rows = 0, 0
        classes, rows = classes + 1, rows + size
        if size >= feature_dim:
            yield classes
            classes, rows = 0, 0
    if classes > 0:
        yield classes
