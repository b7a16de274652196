"""What needs every sample once the class means are known: predictions, nearest class means and cosine margins."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import center_classes
from guided_collapse.metrics.checks import check_classifier, check_finite
from guided_collapse.metrics.statistics import (
    SAFE_IN_FLOAT32,
    ClassStatistics,
    GlobalMean,
    chunk_rows,
    product_dtype,
    safe_in_float32,
)


@dataclass(frozen=True, eq=False)
class Measured:
    """What is measured: class statistics, the classifier if there is one, and the choices that change the numbers; checked."""

    statistics: ClassStatistics
    weight: Tensor | None
    """W, (num_classes, feature_dim)."""
    bias: Tensor | None
    """b, (num_classes,)."""
    global_mean: GlobalMean
    """Whether mu_G is the mean of the samples or of the class means."""
    center_weight: bool
    """Whether W is centered by its mean row before NC2, NC3 and the norms and angles of the weights."""

    def __post_init__(self) -> None:
        means = self.statistics.class_means
        check_classifier(self.weight, self.bias, means.shape[1], len(self.statistics.counts))
        self.statistics.global_mean(self.global_mean)
        check_finite(means, "features", not_vanishing=True)

    @property
    def device(self) -> torch.device:
        """The device of the statistics."""
        return self.statistics.class_means.device

    @cached_property
    def center(self) -> Tensor:
        """mu_G, (feature_dim,), float64."""
        return self.statistics.global_mean(self.global_mean)

    @cached_property
    def centered_class_means(self) -> Tensor:
        """mu_c - mu_G for the classes that have samples, (num_present, feature_dim), float64.

        A dimension in which the means differ by rounding errors only is set to zero.
        """
        means = self.statistics.class_means - self.center
        return torch.where(means.abs().amax(dim=0) > self.statistics.rounding, means, 0)

    @cached_property
    def exact_weight(self) -> Tensor | None:
        """W in float64, on the device of the statistics."""
        return None if self.weight is None else self.weight.detach().to(self.device).to(self.center)

    @cached_property
    def center_logits(self) -> Tensor | None:
        """W mu_G + b, (num_classes,), float64: the logits of the global mean."""
        if self.exact_weight is None:
            return None
        logits = self.exact_weight @ self.center
        return logits if self.bias is None else logits + self.bias.detach().to(self.device).to(logits)

    @cached_property
    def center_scores(self) -> "LinearScores":
        """Scores of h - mu_G, largest for the nearest class mean: |h - mu_c|^2 is |h - mu_G|^2 minus twice these."""
        means = self.centered_class_means
        return LinearScores(means, -means.square().sum(dim=1) / 2)

    @cached_property
    def class_scores(self) -> "LinearScores | None":
        """Scores of h - mu_G, largest for the predicted class: <w_j - w_G, h - mu_G> + (W mu_G + b)_j."""
        if self.exact_weight is None or self.center_logits is None:
            return None
        return LinearScores(center_classes(self.exact_weight), self.center_logits)


class SampleCounts(NamedTuple):
    """Counts over samples, which add up over batches and processes, and the samples' margins."""

    num_samples: Tensor
    """An integer scalar, as the next three."""
    center_correct: Tensor
    """Samples that are nearest to the mean of their own class."""
    correct: Tensor
    """Samples that the classifier predicts correctly; 0 without a classifier."""
    disagreements: Tensor
    """Samples whose predicted class is not that of the nearest class mean; 0 without a classifier."""
    margins: Tensor
    """Cosine margins, float64, (num_samples - undefined,); empty without a classifier."""


def count_samples(measured: Measured, features: Tensor, labels: Tensor) -> SampleCounts:
    """Counts predictions and nearest class means, and computes cosine margins.

    The nearest center is argmin_c |h - mu_c| over the classes that have a mean; the prediction argmax_j <w_j, h> + b_j over all
    classes. The cosine margin of a sample of class c is cos_c - max_{j != c} cos_j, where cos_j is the cosine between h - mu_G and
    w_j - w_G, with w_G the mean weight; samples at mu_G and weights at w_G have none and are left out.

    The large products have the features' own precision, at least float32. Decisions that are too close for it are made in float64.
    """
    labels = labels.to(measured.device, torch.int64)
    rows = chunk_rows(features.shape[1])
    chunks = zip(torch.split(features.detach(), rows), torch.split(labels, rows), strict=True)
    with torch.autocast(measured.device.type, enabled=False):
        parts = [_count_chunk(measured, *chunk) for chunk in chunks]
    *counts, margins = zip(*parts, strict=True)
    return SampleCounts._make([*(torch.stack(values).sum() for values in counts), torch.cat(margins)])


def _count_chunk(measured: Measured, features: Tensor, labels: Tensor) -> SampleCounts:
    points = centered_points(features.to(measured.device), measured.center, product_dtype(features.dtype))
    centers, classes = measured.center_scores, measured.class_scores
    nearest = measured.statistics.present[centers.largest(centers.products(points), points)]
    number, center_correct = labels.new_tensor(len(labels)), (nearest == labels).sum()
    if classes is None:
        return SampleCounts(number, center_correct, torch.zeros_like(number), torch.zeros_like(number), points.norms.new_empty(0))
    products = classes.products(points)
    predictions = classes.largest(products, points)
    cosines = products.div_(classes.norms.to(products.dtype))
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    others = cosines.scatter_(1, labels[:, None], -torch.inf).amax(dim=1)
    margins = (own - others).to(torch.float64) / points.norms
    defined = margins[torch.isfinite(margins)]
    return SampleCounts(number, center_correct, (predictions == labels).sum(), (predictions != nearest).sum(), defined)


class Points(NamedTuple):
    """Samples relative to a center."""

    features: Tensor
    """The samples themselves, (num_samples, feature_dim)."""
    center: Tensor
    """(feature_dim,), float64."""
    values: Tensor
    """features - center, (num_samples, feature_dim), in the precision of products."""
    norms: Tensor
    """The norms of the values, (num_samples,), float64."""


def centered_points(features: Tensor, center: Tensor, dtype: torch.dtype) -> Points:
    """Subtracts the center, in float32 or float64; in float64 as well if float32 cannot hold products of the points."""
    leading = center.to(dtype)
    values = features.to(dtype) - leading
    # In float32 the center comes in two parts, so that points near it have as many correct digits as those far away.
    values -= (center - leading).to(dtype)
    norms = torch.linalg.vector_norm(values, dim=1).to(torch.float64)
    if dtype != torch.float64 and not safe_in_float32(norms):
        return centered_points(features, center, torch.float64)
    return Points(features, center, values, norms)


class LinearScores:
    """<r_j, p> + o_j for rows r_j (num_rows, feature_dim) and offsets o_j (num_rows,), both float64, and any points p.

    Products are taken in float32 where they can be; which score is the largest is decided as float64 would.
    """

    def __init__(self, rows: Tensor, offsets: Tensor) -> None:
        self.rows, self.offsets = rows, offsets
        self.norms = torch.linalg.vector_norm(rows, dim=1)
        self.largest_norm, self.largest_offset = float(self.norms.max()), float(offsets.abs().max())
        safe = safe_in_float32(self.norms) and self.largest_offset < SAFE_IN_FLOAT32[1]
        self.narrow_rows = rows.to(torch.float32) if safe else rows

    def products(self, points: Points) -> Tensor:
        """<r_j, p>, (num_samples, num_rows), in the precision of the points unless these rows need float64."""
        rows = self.narrow_rows if points.values.dtype == torch.float32 else self.rows
        return points.values.to(rows.dtype) @ rows.T

    def largest(self, products: Tensor, points: Points) -> Tensor:
        """argmax_j <r_j, p> + o_j as float64 finds it, (num_samples,), from the products of these points."""
        scores = products + self.offsets.to(products.dtype)
        best, winners = scores.max(dim=1)
        if scores.dtype == torch.float64:
            return winners
        second = scores.scatter_(1, winners[:, None], -torch.inf).amax(dim=1)
        # A bound on the rounding error of the difference of two scores, whatever the order of summation.
        sizes = points.norms * self.largest_norm + self.largest_offset
        doubtful = (best - second <= (self.rows.shape[1] + 8) * torch.finfo(scores.dtype).eps * sizes).nonzero().flatten()
        if len(doubtful) > 0:
            exact = points.features[doubtful].to(points.center) - points.center
            winners[doubtful] = (exact @ self.rows.T + self.offsets).argmax(dim=1)
        return winners
