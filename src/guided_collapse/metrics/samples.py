"""What needs every sample once the class means are known: predictions, nearest class means and cosine margins."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import center_classes
from guided_collapse.metrics.checks import check_classifier
from guided_collapse.metrics.statistics import ClassStatistics, GlobalMean, chunk_rows, fits_float32, product_dtype


class SampleCounts(NamedTuple):
    """Counts over samples, which add up over batches and processes, and the samples' margins."""

    counts: Tensor
    """(4,), int64: samples; nearest to their own class mean; predicted correctly; predicted class is not the nearest one."""
    margins: Tensor
    """Cosine margins, float64, of the samples that have one; empty without a classifier."""


class Measured:
    """What is measured: class statistics, the classifier if there is one, and the choices that change the numbers.

    Args:
        statistics: the finished class statistics.
        weight: W, (num_classes, feature_dim), or None.
        bias: b, (num_classes,), or None.
        global_mean: whether mu_G is the mean of the samples or of the class means.
        center_weight: whether W is centered by its mean row before NC2, NC3 and the norms and angles of the weights.
    """

    def __init__(
        self, statistics: ClassStatistics, weight: Tensor | None, bias: Tensor | None, global_mean: GlobalMean, center_weight: bool
    ) -> None:
        means, num_classes = statistics.class_means, len(statistics.counts)
        check_classifier(weight, bias, means.shape[1], num_classes)
        self.statistics, self.global_mean, self.center_weight = statistics, global_mean, center_weight
        self.center = statistics.global_mean(global_mean)
        centered = means - self.center
        # mu_c - mu_G, where a dimension in which the means differ by rounding errors only is set to zero.
        self.centered_class_means = torch.where(centered.abs().amax(dim=0) > statistics.rounding, centered, 0)
        # A copy of the classifier: training may go on before the second pass is over.
        self.weight = None if weight is None else weight.detach().to(means.device).to(torch.float64, copy=True)
        # W mu_G + b, the logits of the global mean.
        self.center_logits = means.new_zeros(num_classes)
        if bias is not None:
            self.center_logits += bias.detach().to(means.device)
        self.directions = None
        if self.weight is not None:
            self.center_logits += self.weight @ self.center
            self.directions = center_classes(self.weight)
        self.fits_float32 = fits_float32(centered) and (self.directions is None or fits_float32(self.directions))

    def count(self, features: Tensor, labels: Tensor) -> SampleCounts:
        """Counts predictions and nearest class means, and computes cosine margins.

        The nearest center is argmin_c |h - mu_c| over the classes that have a mean; the prediction argmax_j <w_j, h> + b_j over all
        classes. The cosine margin of a sample of class c is cos_c - max_{j != c} cos_j, where cos_j is the cosine between h - mu_G
        and w_j - w_G, with w_G the mean weight; samples at mu_G and weights at w_G have none and are left out.

        The large products have the features' own precision, at least float32.
        """
        device, rows = self.center.device, chunk_rows(features.shape[1])
        features, labels = features.detach().to(device), labels.to(device, torch.int64)
        dtype = product_dtype(features) if self.fits_float32 else torch.float64
        means, logits = self.centered_class_means.to(dtype), self.center_logits.to(dtype)
        directions = None if self.directions is None else self.directions.to(dtype)
        found, margins = [], []
        with torch.autocast(device.type, enabled=False):
            for part, own_class in zip(torch.split(features, rows), torch.split(labels, rows), strict=True):
                points = (part.to(torch.float64) - self.center).to(dtype)
                # |h - mu_c|^2 is |h - mu_G|^2 minus twice these scores.
                scores = points @ means.T - means.square().sum(dim=1) / 2
                nearest = self.statistics.present[scores.argmax(dim=1)]
                counts = [labels.new_tensor(len(part)), (nearest == own_class).sum(), labels.new_zeros(()), labels.new_zeros(())]
                if directions is not None:
                    products = points @ directions.T
                    predictions = (products + logits).argmax(dim=1)
                    counts[2:] = [(predictions == own_class).sum(), (predictions != nearest).sum()]
                    margins.append(_margins(points, products, directions, own_class))
                found.append(torch.stack(counts))
        return SampleCounts(torch.stack(found).sum(dim=0), torch.cat([self.center.new_empty(0), *margins]))


def _margins(points: Tensor, products: Tensor, directions: Tensor, labels: Tensor) -> Tensor:
    """The cosine margins from the products of points and directions, which are overwritten."""
    cosines = products.div_(torch.linalg.vector_norm(directions, dim=1))
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    others = cosines.scatter_(1, labels[:, None], -torch.inf).amax(dim=1)
    margins = (own - others).to(torch.float64) / torch.linalg.vector_norm(points, dim=1)
    return margins[torch.isfinite(margins)]
