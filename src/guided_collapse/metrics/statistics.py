"""What the class-level metrics need to know about the features: counts, class means and within-class scatter."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from guided_collapse.metrics.checks import check_enough_classes
from guided_collapse.metrics.rank import numerical_rank
from guided_collapse.metrics.scatter import add_outer_products, symmetrised

GlobalMean = Literal["samples", "classes"]

CHUNK_ENTRIES = 2**20
"""How many float64 entries are worked on at a time: 8 MB, so that they stay near the processor."""


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
    """The statistics of features that are all at hand, in two passes: means, then deviations from them, in float64.

    Args:
        features: (num_samples, feature_dim), finite.
        labels: (num_samples,), class indices below num_classes.
        num_classes: C.

    Raises:
        ValueError: if fewer than two classes have samples.
    """
    labels = labels.to(torch.int64)
    counts = torch.bincount(labels, minlength=num_classes)
    check_enough_classes(counts)
    present = counts.nonzero().flatten()
    means = _class_sums(features, labels, num_classes)[present] / counts[present, None]
    scatter = means.new_zeros(features.shape[1], features.shape[1])
    class_scatter, ranks = means.new_empty(len(present)), means.new_empty(len(present))
    samples = torch.split(torch.argsort(labels, stable=True), counts[present].tolist())
    position = 0
    for group in _groups([len(indices) for indices in samples], features.shape[1]):
        classes = slice(position, position + group)
        class_scatter[classes], ranks[classes] = _add_classes(scatter, features, samples[classes], means[classes])
        position += group
    return ClassStatistics(counts, means, symmetrised(scatter), class_scatter, ranks)


def chunk_rows(feature_dim: int) -> int:
    """How many samples are worked on at a time."""
    return max(1, CHUNK_ENTRIES // feature_dim)


def _class_sums(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """(num_classes, feature_dim), float64."""
    sums = torch.zeros(num_classes, features.shape[1], dtype=torch.float64, device=features.device)
    rows = chunk_rows(features.shape[1])
    for some_features, some_labels in zip(torch.split(features, rows), torch.split(labels, rows), strict=True):
        sums.index_add_(0, some_labels, some_features.to(torch.float64))
    return sums


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


def _add_classes(scatter: Tensor, features: Tensor, samples: tuple[Tensor, ...], means: Tensor) -> tuple[Tensor, Tensor]:
    """Adds the scatter of a group of classes to `scatter`; returns each one's squared deviations and numerical rank."""
    if len(samples[0]) >= features.shape[1]:
        return _add_large_class(scatter, features, samples[0], means[0])
    deviations = features[torch.cat(samples)].to(torch.float64)
    pieces = torch.split(deviations, [len(indices) for indices in samples])
    squares, ranks = torch.empty_like(means[:, 0]), torch.empty_like(means[:, 0])
    for position, (piece, mean) in enumerate(zip(pieces, means, strict=True)):
        ranks[position] = numerical_rank(piece @ piece.T)
        squares[position] = piece.sub_(mean).square().sum()
    add_outer_products(scatter, deviations)
    return squares, ranks


def _add_large_class(scatter: Tensor, features: Tensor, indices: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The same for one class of at least feature_dim samples, whose own scatter is the smaller Gram matrix."""
    own_scatter = torch.zeros_like(scatter)
    for some in torch.split(indices, chunk_rows(len(mean))):
        add_outer_products(own_scatter, features[some].to(torch.float64).sub_(mean))
    scatter += own_scatter
    gram = torch.addr(symmetrised(own_scatter), mean, mean, alpha=len(indices))
    return own_scatter.diagonal().sum(), numerical_rank(gram)
