"""The pass over samples once the class means are known: predictions, nearest class means and cosine margins."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import center_classes
from guided_collapse.heads.checks import largest_finite
from guided_collapse.metrics.statistics import ClassStatistics, GlobalMean, chunk_rows, product_dtype, safe_in_float32

SMALLEST, LARGEST = 1e-140, 1e140
"""Sizes between which sums of squares neither overflow nor underflow float64."""


class Measured:
    """Class statistics of all samples, together with a validated classifier; arguments are as for `measure_collapse`."""

    def __init__(
        self, statistics: ClassStatistics, weight: Tensor | None, bias: Tensor | None, global_mean: GlobalMean, center_weight: bool
    ) -> None:
        means = statistics.class_means
        check_classifier(weight, bias, means.shape[1], len(statistics.counts))
        check_sizes(means, "features", not_vanishing=True)
        self.statistics, self.global_mean, self.center_weight = statistics, global_mean, center_weight
        self.center = statistics.global_mean(global_mean)
        centered = means - self.center
        # Zero out dimensions in which the means differ only by rounding errors.
        self.centered_class_means = torch.where(centered.abs().amax(dim=0) > statistics.rounding, centered, 0)
        # The score of h - mu_G is largest for the nearest class mean, because |h - mu_c|^2 = |h - mu_G|^2 - 2 score.
        self.center_scores = LinearScores(self.centered_class_means, -self.centered_class_means.square().sum(dim=1) / 2)
        self.weight = self.class_scores = None
        if weight is not None:
            # A copy, because training may continue before the second pass ends.
            self.weight = weight.detach().to(means.device).to(torch.float64, copy=True)
            logits = self.weight @ self.center
            logits = logits if bias is None else logits + bias.detach().to(means.device).to(logits)
            # The score <w_j - w_G, h - mu_G> + (W mu_G + b)_j is largest for the predicted class.
            self.class_scores = LinearScores(center_classes(self.weight), logits)


class SampleCounts(NamedTuple):
    """Counts over samples, which add up over batches and processes, and the cosine margins of the samples."""

    # (4,), int64: the number of all samples, of samples whose own class mean is the nearest, of correct predictions, and of
    # predictions that differ from the class of the nearest mean.
    counts: Tensor
    margins: Tensor  # float64, of the samples that have a margin; empty without a classifier


def count_samples(measured: Measured, features: Tensor, labels: Tensor) -> SampleCounts:
    """Returns how often labels, predictions and nearest class means agree, and the cosine margins, for features with labels.

    The class of the nearest mean is argmin_c |h - mu_c| over classes that have a mean. The predicted class is
    argmax_j <w_j, h> + b_j over all classes. The cosine margin of a sample of class c is cos_c - max_{j != c} cos_j, where cos_j is
    the cosine between h - mu_G and w_j - w_G, and w_G is the mean row of the weight. A margin is undefined, and left out, if
    h = mu_G or if w_j = w_G for some j.

    Large products are in the dtype of the features, at least float32. Decisions that are too close for this dtype are made in
    float64.
    """
    center, centers, classes = measured.center, measured.center_scores, measured.class_scores
    rows, dtype = chunk_rows(features.shape[1]), product_dtype(features.dtype)
    labels = labels.to(center.device, torch.int64)
    found, margins = [], [center.new_empty(0)]
    with torch.autocast(center.device.type, enabled=False):
        for part, own_class in zip(torch.split(features.detach(), rows), torch.split(labels, rows), strict=True):
            points = centered_points(part.to(center.device), center, dtype)
            nearest = measured.statistics.present[centers.largest(centers.products(points), points)]
            counts = [labels.new_tensor(len(part)), (nearest == own_class).sum(), labels.new_zeros(()), labels.new_zeros(())]
            if classes is not None:
                products = classes.products(points)
                predictions = classes.largest(products, points)
                counts[2:] = [(predictions == own_class).sum(), (predictions != nearest).sum()]
                cosines = products.div_(classes.norms.to(products.dtype))
                own = cosines.gather(1, own_class[:, None]).squeeze(1)
                others = cosines.scatter_(1, own_class[:, None], -torch.inf).amax(dim=1)
                of_part = (own - others).to(torch.float64) / points.norms
                margins.append(of_part[torch.isfinite(of_part)])
            found.append(torch.stack(counts))
    return SampleCounts(torch.stack(found).sum(dim=0), torch.cat(margins))


class Points(NamedTuple):
    """Samples, (num_samples, feature_dim), relative to a center, in the dtype for products; norms and center are float64."""

    features: Tensor
    center: Tensor
    values: Tensor  # features - center
    norms: Tensor


def centered_points(features: Tensor, center: Tensor, dtype: torch.dtype) -> Points:
    """Returns the features relative to the center, in `dtype`, or in float64 if float32 cannot hold products of the points."""
    leading = center.to(dtype)
    values = features.to(dtype) - leading
    # In float32, subtract the center in two parts, so that points near the center keep as many digits as points far away.
    values -= (center - leading).to(dtype)
    norms = torch.linalg.vector_norm(values, dim=1).to(torch.float64)
    if dtype != torch.float64 and not safe_in_float32(norms):
        return centered_points(features, center, torch.float64)
    return Points(features, center, values, norms)


class LinearScores:
    """Scores <r_j, p> + o_j of points p, for rows r_j, (num_rows, feature_dim), and offsets o_j, (num_rows,), both float64.

    Products are in float32 if possible, but the row with the largest score is always the one that float64 would find.
    """

    def __init__(self, rows: Tensor, offsets: Tensor) -> None:
        self.rows, self.offsets = rows, offsets
        self.norms = torch.linalg.vector_norm(rows, dim=1)
        self.largest_norm, self.largest_offset = float(self.norms.max()), float(offsets.abs().max())
        safe = safe_in_float32(self.norms, self.largest_offset)
        self.narrow_rows = rows.to(torch.float32) if safe else rows

    def products(self, points: Points) -> Tensor:
        """Returns <r_j, p>, (num_samples, num_rows), in the dtype of the points, unless the rows need float64."""
        rows = self.narrow_rows if points.values.dtype == torch.float32 else self.rows
        return points.values.to(rows.dtype) @ rows.T

    def largest(self, products: Tensor, points: Points) -> Tensor:
        """Returns argmax_j <r_j, p> + o_j, (num_samples,), as in float64, given the products of these points."""
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


def check_classifier(weight: Tensor | None, bias: Tensor | None, feature_dim: int, num_classes: int) -> None:
    """Raises a TypeError or ValueError unless weight and bias, if given, match the feature dimension and the number of classes."""
    if weight is None and bias is not None:
        raise ValueError("bias requires a weight; got only a bias. Pass the classifier's weight, too.")
    for name, value, shape in (("weight", weight, (num_classes, feature_dim)), ("bias", bias, (num_classes,))):
        if value is None:
            continue
        if not isinstance(value, Tensor) or not value.is_floating_point():
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{name} must be a floating-point tensor; got {found}.")
        if value.shape != shape:
            sizes = "(num_classes, feature_dim)" if name == "weight" else "(num_classes,)"
            raise ValueError(f"{name} must be {sizes} = {shape}, as nn.Linear has it; got {tuple(value.shape)}.")
        check_sizes(value, name, not_vanishing=name == "weight")


def check_sizes(values: Tensor, name: str, *, not_vanishing: bool = False) -> None:
    """Raises a ValueError for NaN, infinite and huge entries; with `not_vanishing`, also if all are tiny but not all 0."""
    largest = largest_finite(values, name)
    if largest > LARGEST or (not_vanishing and 0 < largest < SMALLEST):
        raise ValueError(f"{name} must be between {SMALLEST:.0e} and {LARGEST:.0e} in size; got up to {largest:.1e}. Rescale them.")
