"""What has to be looked at sample by sample once the class means are known: predictions, nearest centers, cosine margins."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.formulas.decisions import centered_points
from guided_collapse.metrics.formulas.measured import Measured
from guided_collapse.metrics.formulas.products import product_dtype
from guided_collapse.metrics.formulas.statistics import chunk_rows


class SampleCounts(NamedTuple):
    """Counts over samples, which add up over batches and processes, and the samples' margins."""

    num_samples: Tensor
    """How many samples, an integer scalar."""
    center_correct: Tensor
    """How many are nearest to the mean of their own class."""
    correct: Tensor
    """How many the classifier predicts rightly; 0 without a classifier."""
    disagreements: Tensor
    """How many the classifier predicts as another class than that of the nearest class mean; 0 without a classifier."""
    margins: Tensor
    """Cosine margins, float64, (num_samples - undefined,); empty without a classifier."""


def count_samples(measured: Measured, features: Tensor, labels: Tensor) -> SampleCounts:
    """Predictions, nearest class means and cosine margins of some samples.

    The nearest center is argmin_c |h - mu_c| over the classes that have a mean; the prediction argmax_j <w_j, h> + b_j over all
    classes. The cosine margin of a sample of class c is cos_c - max_{j != c} cos_j, where cos_j is the cosine between h - mu_G and
    w_j - w_G, with w_G the mean weight; it is undefined for a sample at mu_G itself or weights at w_G, and then left out.

    The large products are in the features' own precision, at least float32. Decisions so close that they could come out another way
    in float64 are taken again in float64.

    Args:
        measured: finished statistics and the classifier.
        features: (num_samples, feature_dim), finite.
        labels: (num_samples,), class indices.
    """
    labels = labels.to(measured.device, torch.int64)
    rows = chunk_rows(features.shape[1])
    chunks = zip(torch.split(features.detach(), rows), torch.split(labels, rows), strict=True)
    with torch.autocast(measured.device.type, enabled=False):
        parts = [_count_chunk(measured, *chunk) for chunk in chunks]
    return SampleCounts(
        num_samples=torch.stack([part.num_samples for part in parts]).sum(),
        center_correct=torch.stack([part.center_correct for part in parts]).sum(),
        correct=torch.stack([part.correct for part in parts]).sum(),
        disagreements=torch.stack([part.disagreements for part in parts]).sum(),
        margins=torch.cat([part.margins for part in parts]),
    )


def _count_chunk(measured: Measured, features: Tensor, labels: Tensor) -> SampleCounts:
    points = centered_points(features.to(measured.device), measured.center, product_dtype(features.dtype))
    centers = measured.center_scores
    nearest = measured.statistics.present[centers.largest(centers.products(points), points)]
    number, center_correct = labels.new_tensor(len(labels)), (nearest == labels).sum()
    classes = measured.class_scores
    if classes is None:
        return SampleCounts(number, center_correct, torch.zeros_like(number), torch.zeros_like(number), points.norms.new_empty(0))
    products = classes.products(points)
    predictions = classes.largest(products, points)
    margins = _margins(products, classes.norms, points.norms, labels)
    return SampleCounts(number, center_correct, (predictions == labels).sum(), (predictions != nearest).sum(), margins)


def _margins(products: Tensor, weight_norms: Tensor, norms: Tensor, labels: Tensor) -> Tensor:
    """The cosine margins that are defined, float64; overwrites `products`."""
    cosines = products.div_(weight_norms.to(products.dtype))
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    others = cosines.scatter_(1, labels[:, None], -torch.inf).amax(dim=1)
    margins = (own - others).to(torch.float64) / norms
    return margins[torch.isfinite(margins)]
