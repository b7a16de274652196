"""Counts, means and scatter of a part of the samples, and how two parts become one without losing digits."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.checks import check_enough_classes
from guided_collapse.metrics.formulas.products import add_outer_products, symmetrized
from guided_collapse.metrics.formulas.statistics import ClassStatistics


class Moments(NamedTuple):
    """The class statistics of a part of the samples, with means kept relative to a reference for each class.

    At collapse all samples of a class nearly coincide. Their differences from a reference close by are then exact in floating
    point, and the mean of these differences has as many correct digits as they have, which the mean of the samples has not.
    """

    counts: Tensor
    """(num_classes,), int64."""
    references: Tensor
    """(num_classes, feature_dim), float64; of no meaning for classes without samples."""
    offsets: Tensor
    """Class mean minus reference, (num_classes, feature_dim), float64; 0 for classes without samples."""
    scatter: Tensor
    """sum (h - mu_c)(h - mu_c)', (feature_dim, feature_dim), float64, upper block triangle only."""
    class_scatter: Tensor
    """sum |h - mu_c|^2 of each class, (num_classes,), float64."""

    def statistics(self) -> ClassStatistics:
        """What the metrics are computed from.

        Raises:
            ValueError: if fewer than two classes have samples.
        """
        check_enough_classes(self.counts)
        present = self.counts.nonzero().flatten()
        means = (self.references + self.offsets)[present]
        return ClassStatistics(self.counts.clone(), means, symmetrized(self.scatter), self.class_scatter[present])


def no_moments(num_classes: int, feature_dim: int, device: torch.device | None = None) -> Moments:
    """The moments of no samples."""
    rows = torch.zeros(num_classes, feature_dim, dtype=torch.float64, device=device)
    counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
    return Moments(counts, rows, rows.clone(), rows.new_zeros(feature_dim, feature_dim), rows.new_zeros(num_classes))


def batch_moments(features: Tensor, labels: Tensor, references: Tensor) -> Moments:
    """The moments of a batch.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), int64.
        references: (num_classes, feature_dim), float64.
    """
    counts = torch.bincount(labels, minlength=len(references))
    deviations = features.to(references) - references[labels]
    offsets = torch.zeros_like(references).index_add_(0, labels, deviations) / counts.clamp(min=1)[:, None]
    deviations -= offsets[labels]
    scatter = references.new_zeros(references.shape[1], references.shape[1])
    add_outer_products(scatter, deviations)
    class_scatter = references.new_zeros(len(references)).index_add_(0, labels, deviations.square().sum(dim=1))
    return Moments(counts, references, offsets, scatter, class_scatter)


def first_samples(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The first sample of each class in a batch, (num_classes, feature_dim), float64; zeros for classes not in it."""
    positions = torch.arange(len(labels), device=labels.device)
    first = torch.full((num_classes,), len(labels), device=labels.device).scatter_reduce_(0, labels, positions, "amin")
    found = (first < len(labels)).nonzero().flatten()
    samples = torch.zeros(num_classes, features.shape[1], dtype=torch.float64, device=features.device)
    samples[found] = features[first[found]].to(torch.float64)
    return samples


def merge(left: Moments, right: Moments) -> Moments:
    """The moments of both parts together. Changes `left` in place and returns it.

    For a class with n and m samples whose means differ by delta, the scatter about the common mean is the sum of the two scatters
    plus n m/(n+m) delta delta'. All terms are positive semidefinite: nothing cancels, whatever the references, and no scatter can
    come out negative.
    """
    classes = right.counts.nonzero().flatten()
    here, there = left.counts[classes].to(torch.float64), right.counts[classes].to(torch.float64)
    unknown = classes[here == 0]
    left.references[unknown] = right.references[unknown]
    shift = right.references[classes] - left.references[classes]
    differences = shift + right.offsets[classes] - left.offsets[classes]
    shares = here * there / (here + there)
    weighted = differences * shares.sqrt()[:, None]
    left.scatter.add_(right.scatter)
    add_outer_products(left.scatter, weighted)
    left.class_scatter.add_(right.class_scatter).index_add_(0, classes, weighted.square().sum(dim=1))
    left.offsets.index_add_(0, classes, differences * (there / (here + there))[:, None])
    left.counts.add_(right.counts)
    return left
