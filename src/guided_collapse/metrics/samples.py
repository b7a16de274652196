"""What has to be looked at sample by sample once the class means are known: predictions, nearest centres, cosine margins."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import centre_classes
from guided_collapse.metrics.setting import Setting
from guided_collapse.metrics.statistics import chunk_rows

SAFE_IN_FLOAT32 = (1e-20, 1e20)
"""Sizes of inner products between which neither overflow nor underflow is near."""


class SampleCounts(NamedTuple):
    """Counts over samples, which add up over batches and processes, and the samples' margins."""

    num_samples: Tensor
    """How many samples, an integer scalar."""
    centre_correct: Tensor
    """How many are nearest to the mean of their own class."""
    correct: Tensor
    """How many the classifier predicts rightly; 0 without a classifier."""
    disagreements: Tensor
    """How many the classifier predicts as another class than that of the nearest class mean; 0 without a classifier."""
    margins: Tensor
    """Cosine margins, float64, (num_samples - undefined,); empty without a classifier."""


def count_samples(setting: Setting, features: Tensor, labels: Tensor) -> SampleCounts:
    """Predictions, nearest class means and cosine margins of some samples.

    The nearest centre is argmin_c |h - mu_c| over the classes that have a mean; the prediction argmax_j <w_j, h> + b_j over all
    classes. The cosine margin of a sample of class c is cos_c - max_{j != c} cos_j, where cos_j is the cosine between h - mu_G and
    w_j - w_G, with w_G the mean weight; it is undefined for a sample at mu_G itself or weights at w_G, and then left out.

    The large products are in the features' own precision, at least float32. Decisions so close that they could come out another way
    in float64 are taken again in float64.

    Args:
        setting: finished statistics and the classifier.
        features: (num_samples, feature_dim), finite.
        labels: (num_samples,), class indices.
    """
    labels = labels.to(setting.device, torch.int64)
    rows = chunk_rows(features.shape[1])
    chunks = zip(torch.split(features, rows), torch.split(labels, rows), strict=True)
    parts = [_count_chunk(setting, *chunk) for chunk in chunks]
    return SampleCounts(
        num_samples=torch.stack([part.num_samples for part in parts]).sum(),
        centre_correct=torch.stack([part.centre_correct for part in parts]).sum(),
        correct=torch.stack([part.correct for part in parts]).sum(),
        disagreements=torch.stack([part.disagreements for part in parts]).sum(),
        margins=torch.cat([part.margins for part in parts]),
    )


def _count_chunk(setting: Setting, features: Tensor, labels: Tensor) -> SampleCounts:
    dtype = torch.promote_types(features.dtype, torch.float32)
    points = features.detach().to(setting.centre) - setting.centre
    means = setting.centred_class_means
    # |h - mu_c|^2 is |h - mu_G|^2, the same for all classes, minus twice this.
    _, nearest = _scores(points, means, -means.square().sum(dim=1) / 2, dtype)
    nearest = setting.statistics.present[nearest]
    number, centre_correct = labels.new_tensor(len(labels)), (nearest == labels).sum()
    if setting.exact_weight is None or setting.centre_logits is None:
        return SampleCounts(number, centre_correct, torch.zeros_like(number), torch.zeros_like(number), points.new_empty(0))
    # <w_j, h> + b_j is <w_j - w_G, h - mu_G> + (W mu_G + b)_j plus what is the same for all j.
    weight = centre_classes(setting.exact_weight)
    products, predictions = _scores(points, weight, setting.centre_logits, dtype)
    margins = _margins(products, points, weight, labels)
    return SampleCounts(number, centre_correct, (predictions == labels).sum(), (predictions != nearest).sum(), margins)


def _scores(points: Tensor, rows: Tensor, offsets: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The products points @ rows' in `dtype`, and argmax_j (points @ rows' + offsets)_j as float64 finds it."""
    sizes = torch.linalg.vector_norm(points, dim=1) * torch.linalg.vector_norm(rows, dim=1).max() + offsets.abs().max()
    if not SAFE_IN_FLOAT32[0] < float(sizes.max()) < SAFE_IN_FLOAT32[1]:
        dtype = torch.float64
    products = points.to(dtype) @ rows.to(dtype).T
    scores = products + offsets.to(dtype)
    if dtype == torch.float64:
        return products, scores.argmax(dim=1)
    best, indices = scores.topk(2, dim=1)
    # A bound on the rounding error of the difference of two scores, whatever the order of summation.
    doubtful = best[:, 0] - best[:, 1] <= (points.shape[1] + 4) * torch.finfo(dtype).eps * sizes
    winners = indices[:, 0]
    if bool(doubtful.any()):
        winners[doubtful] = (points[doubtful] @ rows.T + offsets).argmax(dim=1)
    return products, winners


def _margins(products: Tensor, points: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The cosine margins that are defined, float64; overwrites `products`."""
    cosines = products.div_(torch.linalg.vector_norm(weight, dim=1).to(products.dtype))
    own = cosines.gather(1, labels[:, None]).squeeze(1)
    others = cosines.scatter_(1, labels[:, None], -torch.inf).amax(dim=1)
    margins = (own - others).to(torch.float64) / torch.linalg.vector_norm(points, dim=1)
    return margins[torch.isfinite(margins)]
