"""What is measured: the finished class statistics and the classifier, with the choices that change the numbers."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import center_classes
from guided_collapse.metrics.checks import check_classifier, check_not_vanishing
from guided_collapse.metrics.formulas.decisions import LinearScores
from guided_collapse.metrics.formulas.statistics import ClassStatistics, GlobalMean


def has_simplex(num_classes: int, feature_dim: int) -> bool:
    """Whether there is a simplex ETF of so many classes in so many dimensions."""
    return feature_dim >= num_classes - 1


@dataclass(frozen=True, eq=False)
class Measured:
    """What is measured: class statistics, a classifier if there is one, and the choices that change the numbers.

    Raises:
        ValueError: for a classifier that does not fit the statistics, an unknown global mean, or numbers too small to be squared.
    """

    statistics: ClassStatistics
    weight: Tensor | None
    """W, (num_classes, feature_dim)."""
    bias: Tensor | None
    """b, (num_classes,); None for a classifier without one."""
    global_mean: GlobalMean
    """Whether mu_G is the mean of the samples or of the class means."""
    center_weight: bool
    """Whether W is centered by its mean row before NC2, NC3 and the norms and angles of the weights."""

    def __post_init__(self) -> None:
        check_classifier(self.weight, self.bias, len(self.statistics.counts), self.statistics.class_means.shape[1])
        self.statistics.global_mean(self.global_mean)
        check_not_vanishing(self.statistics.class_means, "features")
        if self.weight is not None:
            check_not_vanishing(self.weight, "weight")

    @cached_property
    def center(self) -> Tensor:
        """mu_G, (feature_dim,), float64."""
        return self.statistics.global_mean(self.global_mean)

    @cached_property
    def centered_class_means(self) -> Tensor:
        """mu_c - mu_G for the classes that have samples, (num_present, feature_dim), float64.

        A dimension in which the means differ by no more than rounding errors has zeros: all classes are the same there.
        """
        means = self.statistics.class_means - self.center
        return torch.where(means.abs().amax(dim=0) > self.statistics.rounding, means, 0)

    @cached_property
    def exact_weight(self) -> Tensor | None:
        """W in float64, beside the statistics."""
        return None if self.weight is None else self.weight.detach().to(self.device).to(self.center)

    @cached_property
    def judged_weight(self) -> Tensor | None:
        """W in float64, centered if so chosen: what the weights are judged by."""
        if self.exact_weight is None or not self.center_weight:
            return self.exact_weight
        return center_classes(self.exact_weight)

    @cached_property
    def center_logits(self) -> Tensor | None:
        """W mu_G + b, (num_classes,), float64: the logits of the global mean."""
        if self.exact_weight is None:
            return None
        logits = self.exact_weight @ self.center
        return logits if self.bias is None else logits + self.bias.detach().to(self.device).to(logits)

    @cached_property
    def center_scores(self) -> LinearScores:
        """Of h - mu_G, largest for the nearest class mean: |h - mu_c|^2 is |h - mu_G|^2, the same for all c, minus twice these."""
        means = self.centered_class_means
        return LinearScores(means, -means.square().sum(dim=1) / 2)

    @cached_property
    def class_scores(self) -> LinearScores | None:
        """Of h - mu_G, largest for the predicted class: <w_j - w_G, h - mu_G> + (W mu_G + b)_j, the logits up to a common term."""
        if self.exact_weight is None or self.center_logits is None:
            return None
        return LinearScores(center_classes(self.exact_weight), self.center_logits)

    @property
    def device(self) -> torch.device:
        """Where the statistics are."""
        return self.statistics.class_means.device
