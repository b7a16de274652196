"""The measurement from a stream of batches, in one pass, under one or several processes."""

from collections.abc import Iterable
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.metrics.checks import check_finite, check_samples
from guided_collapse.metrics.collapse import collapse_result
from guided_collapse.metrics.formulas.measured import Measured
from guided_collapse.metrics.formulas.moments import Moments, batch_moments, first_samples, merge, no_moments
from guided_collapse.metrics.formulas.statistics import ClassStatistics, GlobalMean, check_global_mean, class_statistics
from guided_collapse.metrics.machinery.result_metric import ResultMetric
from guided_collapse.metrics.machinery.second_pass import SecondPass
from guided_collapse.metrics.result import CollapseResult


class LabeledFeatures(NamedTuple):
    """A batch as the metrics take it."""

    features: Tensor
    """(num_samples, feature_dim)."""
    labels: Tensor
    """(num_samples,), class indices."""


class CollapseMetrics(ResultMetric):
    """`measure_collapse` for features that come batch by batch: `update(features, labels)`, then `compute()` or `measure(weight)`.

    One pass, float64, memory O(feature_dim^2 + num_classes feature_dim) whatever the number of samples is. NC4, accuracies and
    cosine margins need the finished class means: go through the samples again with `second_pass`, or keep the features. The result
    does not depend on the order of the samples, on how they are cut into batches, or on how they are spread over processes.
    Moved to a device without float64 (Apple's), it stays on the CPU, and each batch goes there.

    Args:
        num_classes: C, at least 2.
        feature_dim: d.
        reference_means: (num_classes, feature_dim), points near the class means, from which deviations are taken; None takes the
            first sample of each class. They change no number, and near collapse the last digits are better for close ones.
        keep_features: whether all features are kept, so that `measure` gives everything without a second pass (numerical ranks only
            where one process has all samples).
        global_mean: as in `measure_collapse`.
        center_weight: as in `measure_collapse`.

    Example:
        >>> import torch
        >>> from guided_collapse import CollapseMetrics
        >>> metrics = CollapseMetrics(num_classes=3, feature_dim=4)
        >>> for _ in range(2):
        ...     metrics.update(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> metrics.compute().num_samples
        12
    """

    counts: Tensor
    references: Tensor
    offsets: Tensor
    scatter: Tensor
    class_scatter: Tensor

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        reference_means: Tensor | None = None,
        keep_features: bool = False,
        global_mean: GlobalMean = "samples",
        center_weight: bool = False,
    ) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        check_global_mean(global_mean)
        self.num_classes = num_classes
        self.feature_dim = feature_dim
        self.keep_features = keep_features
        self.global_mean: GlobalMean = global_mean
        self.center_weight = center_weight
        self.given_references = reference_means is not None
        self.kept: list[tuple[Tensor, Tensor]] = []
        start = no_moments(num_classes, feature_dim)
        if reference_means is not None:
            start = start._replace(references=self._checked_references(reference_means))
        # Scatters add up; what lies between the processes' means is added when they are merged.
        for name, value in start._asdict().items():
            self.add_state(name, value, dist_reduce_fx="sum" if name in ("scatter", "class_scatter") else None)
        if keep_features:
            # A MetricCollection updates only one of several metrics whose states are equal, and features are no part of the state.
            # NaN equals nothing.
            self.add_state("apart", torch.tensor(torch.nan), dist_reduce_fx="sum")

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Takes in one batch.

        Args:
            features: (num_samples, feature_dim), of any floating-point type.
            labels: (num_samples,), class indices.

        Raises:
            ValueError: for a batch that does not fit; the state is then as it was.
        """
        check_samples(features, labels, self.num_classes, feature_dim=self.feature_dim)
        features, labels = features.detach(), labels.to(features.device, torch.int64)
        if self.keep_features:
            self.kept.append((features.clone(), labels.clone()))
        own_features, own_labels = features.to(self.counts.device), labels.to(self.counts.device)
        references = self.references
        if not self.given_references:
            new = first_samples(own_features, own_labels, self.num_classes)
            references = torch.where((self.counts > 0)[:, None], references, new)
        merge(self._moments(), batch_moments(own_features, own_labels, references))

    def compute(self) -> CollapseResult:
        """What the class statistics alone tell, over all processes.

        Raises:
            ValueError: if fewer than two classes have samples.
        """
        return collapse_result(self._measured(self._merged().statistics(), None, None))

    def statistics(self) -> ClassStatistics:
        """The class statistics so far, over all processes."""
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self._merged().statistics()

    def measure(self, weight: Tensor | None = None, bias: Tensor | None = None) -> CollapseResult:
        """What the class statistics and a classifier tell, over all processes; everything, if the features were kept.

        Takes and refuses what `second_pass` does.
        """
        if not self.keep_features:
            return collapse_result(self._measured(self.statistics(), weight, bias))
        second = self.second_pass(weight, bias)
        for features, labels in self.kept:
            second.update(features, labels)
        return second.compute()

    def second_pass(self, weight: Tensor | None = None, bias: Tensor | None = None) -> SecondPass:
        """A metric that takes the same samples once more and then computes everything.

        Args:
            weight: W, (num_classes, feature_dim).
            bias: b, (num_classes,).

        Raises:
            ValueError: for a classifier that does not fit, or samples of fewer than two classes.
        """
        statistics = self.statistics()
        if sum(len(labels) for _, labels in self.kept) == statistics.num_samples:
            features, labels = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
            statistics = class_statistics(features, labels, self.num_classes)
        return SecondPass(self._measured(statistics, weight, bias))

    def reset(self) -> None:
        """Forgets all samples."""
        super().reset()
        self.kept.clear()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Takes in the samples of another `CollapseMetrics` of the same sizes.

        Raises:
            ValueError: for anything else.
        """
        if not isinstance(incoming_state, CollapseMetrics) or incoming_state.scatter.shape != self.scatter.shape:
            raise ValueError(
                f"merge_state needs another CollapseMetrics({self.num_classes}, {self.feature_dim}); got {incoming_state!r}."
            )
        merge(self._moments(), incoming_state._moments())
        self.kept.extend(incoming_state.kept)
        self._update_count += incoming_state._update_count
        self._computed = None

    def _moments(self) -> Moments:
        return Moments(self.counts, self.references, self.offsets, self.scatter, self.class_scatter)

    def _merged(self) -> Moments:
        """The moments of all processes, from states that torchmetrics has gathered, or of this one if there are no others."""
        if self.counts.ndim == 1:
            return self._moments()
        total = no_moments(self.num_classes, self.feature_dim, self.counts.device)
        total.scatter.copy_(self.scatter)
        total.class_scatter.copy_(self.class_scatter)
        no_scatter = torch.zeros_like(self.scatter), torch.zeros_like(self.class_scatter)
        parts = zip(self.counts, self.references, self.offsets, strict=True)
        return reduce(merge, (Moments(*part, *no_scatter) for part in parts), total)

    def _measured(self, statistics: ClassStatistics, weight: Tensor | None, bias: Tensor | None) -> Measured:
        return Measured(statistics, weight, bias, self.global_mean, self.center_weight)

    def _checked_references(self, reference_means: Tensor) -> Tensor:
        if reference_means.shape != (self.num_classes, self.feature_dim):
            raise ValueError(
                f"reference_means must be (num_classes, feature_dim) = ({self.num_classes}, {self.feature_dim}); "
                f"got {tuple(reference_means.shape)}."
            )
        check_finite(reference_means, "reference_means")
        return reference_means.detach().cpu().to(torch.float64)


def collapse_in_passes(
    metrics: CollapseMetrics,
    first: Iterable[LabeledFeatures],
    again: Iterable[LabeledFeatures],
    test: Iterable[LabeledFeatures],
    *,
    weight: Tensor | None,
    bias: Tensor | None,
) -> CollapseResult:
    """The measurement of batches that are gone through twice, or once where the metrics keep the features.

    Args:
        metrics: without samples yet.
        first: all batches.
        again: the same once more, which are not asked for if the features are kept.
        test: batches of other samples.
        weight: W, (num_classes, feature_dim).
        bias: b, (num_classes,).
    """
    for features, labels in first:
        metrics.update(features, labels)
    second = metrics.second_pass(weight, bias)
    for features, labels in metrics.kept if metrics.keep_features else again:
        second.update(features, labels)
    for features, labels in test:
        second.update(features, labels, test=True)
    return second.compute()
