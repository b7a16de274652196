"""Measurements from a stream of batches, in one or two passes, in one or several processes."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.heads.checks import LABEL_TYPES
from guided_collapse.metrics.result import CollapseResult, collapse_result
from guided_collapse.metrics.samples import Measured, SampleCounts, check_sizes, count_samples
from guided_collapse.metrics.statistics import (
    ClassStatistics,
    GlobalMean,
    Moments,
    add_batch,
    check_global_mean,
    class_statistics,
    has_float64,
    merge,
    no_moments,
)


class _ResultMetric(Metric):
    """A torchmetrics metric that computes a `CollapseResult`. The state keeps its dtype, and never moves to MPS."""

    full_state_update = False
    higher_is_better = None
    is_differentiable = False

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Calls `update`; returns nothing, because a single batch has no result."""
        self.update(*args, **kwargs)

    def _wrap_compute(self, compute: Callable[[], CollapseResult]) -> Callable[[], CollapseResult]:
        """Returns `compute` with torchmetrics' caching and synchronization, which need the frozen result wrapped in an object."""
        wrapped = super()._wrap_compute(lambda: SimpleNamespace(result=compute()))
        return lambda: wrapped().result

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        """Moves the state to another device if `fn` does, as for `to`, but keeps its dtype, even for `half` and `set_dtype`."""

        def keeping_type(tensor: Tensor) -> Tensor:
            # Find the target device with an integer tensor, which every device supports.
            device = fn(torch.empty(0, dtype=torch.int64, device=tensor.device)).device
            return tensor.to(device if has_float64(device) else "cpu")

        super()._apply(keeping_type, exclude_state)
        return self


class CollapseMetrics(_ResultMetric):
    """`measure_collapse` for a stream of batches, as a torchmetrics metric.

    Call `update(features, labels)` with every batch, then `compute()`, or `measure(weight, bias)` to include the classifier. NC4,
    accuracies and cosine margins require the final class means. For these metrics, pass the same batches again to
    `second_pass(weight, bias)`, or keep the features.

    The metric takes one pass in float64 and O(feature_dim^2 + num_classes feature_dim) memory. Up to rounding, the result does not
    depend on the order of samples, on the batch size, or on the distribution of samples over processes. For features on MPS
    devices, which lack float64, the metric computes on the CPU.

    Args:
        feature_dim: d, at least 1.
        num_classes: C, at least 2.
        keep_features: whether to keep all features, so that `measure` returns every metric without a second pass, except that
            numerical ranks require a single process with all samples.
        global_mean, center_weight: as for `measure_collapse`.

    Example:
        >>> import torch
        >>> from guided_collapse import CollapseMetrics
        >>> metrics = CollapseMetrics(feature_dim=3, num_classes=3)
        >>> metrics.update(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> metrics.compute().num_samples
        6
    """

    counts: Tensor
    references: Tensor
    offsets: Tensor
    scatter: Tensor
    class_scatter: Tensor

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        keep_features: bool = False,
        global_mean: GlobalMean = "samples",
        center_weight: bool = False,
    ) -> None:
        super().__init__()
        check_feature_dim(feature_dim)
        check_num_classes(num_classes)
        check_global_mean(global_mean)
        self.feature_dim, self.num_classes, self.keep_features = feature_dim, num_classes, keep_features
        self.global_mean, self.center_weight = global_mean, center_weight
        self.kept: list[tuple[Tensor, Tensor]] = []
        # The sum of the scatter over processes lacks the scatter between the means of processes, which `_merged` adds.
        for name, value in no_moments(feature_dim, num_classes)._asdict().items():
            self.add_state(name, value, dist_reduce_fx="sum" if name in ("scatter", "class_scatter") else None)
        if keep_features:
            # A MetricCollection updates only one of several metrics whose states are equal. The kept features are not part of the
            # state, so this NaN, which is not equal to itself, makes sure that this metric is updated, too.
            self.add_state("apart", torch.tensor(torch.nan), dist_reduce_fx="sum")

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Adds a batch.

        Args:
            features: (num_samples, feature_dim), floating-point.
            labels: class indices, (num_samples,).

        Raises:
            TypeError, ValueError: for an invalid batch; the state is then unchanged.
        """
        check_samples(features, labels, self.num_classes, feature_dim=self.feature_dim)
        features, labels = features.detach(), labels.to(features.device, torch.int64)
        if self.keep_features:
            self.kept.append((features.clone(), labels.clone()))
        add_batch(self._moments(), features.to(self.counts.device), labels.to(self.counts.device))

    def compute(self) -> CollapseResult:
        """Returns the metrics of class means and scatter, over all processes. Raises a ValueError for fewer than two classes."""
        return collapse_result(Measured(self._merged().statistics(), None, None, self.global_mean, self.center_weight))

    def statistics(self) -> ClassStatistics:
        """Returns the class statistics, over all processes."""
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self._merged().statistics()

    def measure(self, weight: Tensor | None = None, bias: Tensor | None = None) -> CollapseResult:
        """Returns the metrics of class means, scatter and a classifier, over all processes; with `keep_features`, all metrics.

        `weight` is (num_classes, feature_dim) and `bias` (num_classes,), as in `nn.Linear`.
        """
        if not self.keep_features:
            return collapse_result(Measured(self.statistics(), weight, bias, self.global_mean, self.center_weight))
        return collapse_in_passes(self, (), (), (), weight=weight, bias=bias)  # from the features that were kept

    def second_pass(self, weight: Tensor | None = None, bias: Tensor | None = None) -> "SecondPass":
        """Returns a metric for a second pass over the same samples, which also computes NC4, accuracies and cosine margins.

        `weight` is (num_classes, feature_dim) and `bias` (num_classes,), as in `nn.Linear`.
        """
        statistics = self.statistics()
        if sum(len(labels) for _, labels in self.kept) == statistics.num_samples:
            features, labels = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
            statistics = class_statistics(features, labels, self.num_classes)
        return SecondPass(Measured(statistics, weight, bias, self.global_mean, self.center_weight))

    def reset(self) -> None:
        """Resets the metric to its state before the first batch."""
        super().reset()
        self.kept.clear()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Merges another `CollapseMetrics` of the same sizes into this one."""
        if not isinstance(incoming_state, CollapseMetrics):
            raise TypeError(f"merge_state needs another CollapseMetrics; got {type(incoming_state).__name__}.")
        if incoming_state.references.shape != self.references.shape:
            own, others = ((metrics.feature_dim, metrics.num_classes) for metrics in (self, incoming_state))
            raise ValueError(f"merge_state needs another CollapseMetrics{own}; got CollapseMetrics{others}.")
        merge(self._moments(), incoming_state._moments())
        self.kept.extend(incoming_state.kept)
        self._update_count += incoming_state._update_count
        self._computed = None

    def _moments(self) -> Moments:
        return Moments(self.counts, self.references, self.offsets, self.scatter, self.class_scatter)

    def _merged(self) -> Moments:
        """Returns the merged moments of all processes if torchmetrics has gathered them, otherwise the moments of this process."""
        if self.counts.ndim == 1:
            return self._moments()
        total = no_moments(self.feature_dim, self.num_classes, self.counts.device)
        total.scatter.copy_(self.scatter)
        total.class_scatter.copy_(self.class_scatter)
        no_scatter = torch.zeros_like(self.scatter), torch.zeros_like(self.class_scatter)
        parts = zip(self.counts, self.references, self.offsets, strict=True)
        return reduce(merge, (Moments(*part, *no_scatter) for part in parts), total)


class SecondPass(_ResultMetric):
    """The second pass over the samples of a `CollapseMetrics`, which adds NC4, accuracies and cosine margins.

    Created by `CollapseMetrics.second_pass`. Keeps the cosine margin of every sample, one number each.

    Example:
        >>> import torch
        >>> from guided_collapse import CollapseMetrics
        >>> features, labels, weight = torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2]), torch.eye(3)
        >>> metrics = CollapseMetrics(feature_dim=3, num_classes=3)
        >>> metrics.update(features, labels)
        >>> again = metrics.second_pass(weight)
        >>> again.update(features, labels)
        >>> again.compute().accuracy
        1.0
    """

    counts: Tensor
    margins: list[Tensor]
    test_counts: Tensor
    test_margins: list[Tensor]

    def __init__(self, measured: Measured) -> None:
        super().__init__()
        self.measured = measured
        for prefix in ("", "test_"):
            self.add_state(f"{prefix}counts", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")
            self.add_state(f"{prefix}margins", [], dist_reduce_fx="cat")
        self.to(measured.center.device)

    def update(self, features: Tensor, labels: Tensor, *, test: bool = False) -> None:
        """Adds a batch, as for `CollapseMetrics.update`. Pass `test=True` for test samples, which were not in the first pass."""
        num_classes, feature_dim = len(self.measured.statistics.counts), len(self.measured.center)
        check_samples(features, labels, num_classes, feature_dim=feature_dim, prefix="test_" if test else "")
        if len(features) > 0:
            batch = count_samples(self.measured, features, labels)
            (self.test_counts if test else self.counts).add_(batch.counts)
            (self.test_margins if test else self.margins).append(batch.margins)

    def compute(self) -> CollapseResult:
        """Returns the metrics of both passes. Raises a ValueError if samples were added, but not as many as in the first pass."""
        expected, found = self.measured.statistics.num_samples, int(self.counts[0])
        if found not in (0, expected):
            raise ValueError(
                f"the second pass must see the same {expected} samples as the first; got {found}. Pass all batches again."
            )
        samples, test_samples = (
            SampleCounts(counts, dim_zero_cat(margins)) if int(counts[0]) > 0 else None
            for counts, margins in ((self.counts, self.margins), (self.test_counts, self.test_margins))
        )
        return collapse_result(self.measured, samples, test_samples)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Synchronizes the state across processes."""
        for margins in (self.margins, self.test_margins):
            if not margins:
                # Without this, torchmetrics would send an empty float32 tensor to processes that expect float64.
                margins.append(torch.empty(0, dtype=torch.float64, device=self.counts.device))
        super().sync(*args, **kwargs)


Batches = Iterable[tuple[Tensor, Tensor]]


def collapse_in_passes(
    metrics: CollapseMetrics, first: Batches, again: Batches, test: Batches, *, weight: Tensor | None, bias: Tensor | None
) -> CollapseResult:
    """Returns the result for batches of (features, labels), measured in two passes, or in one if `metrics` keeps the features.

    `again` yields the same samples as `first`; it is not consumed if features are kept. `test` yields batches of test samples.
    """
    for features, labels in first:
        metrics.update(features, labels)
    second = metrics.second_pass(weight, bias)
    for features, labels in metrics.kept if metrics.keep_features else again:
        second.update(features, labels)
    for features, labels in test:
        second.update(features, labels, test=True)
    return second.compute()


def check_samples(
    features: Tensor, labels: Tensor, num_classes: int | None, *, feature_dim: int | None = None, prefix: str = ""
) -> int:
    """Validates features, (num_samples, feature_dim), and labels, (num_samples,), and returns the number of classes.

    If `num_classes` is None, the number is the largest label + 1; if `feature_dim` is None, any positive width is valid. `prefix`
    precedes argument names in error messages.
    """
    for name, value in ((f"{prefix}features", features), (f"{prefix}labels", labels)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a torch tensor; got {type(value).__name__}. Use torch.as_tensor({name}).")
    if features.ndim != 2 or features.shape[1] == 0 or feature_dim not in (None, features.shape[1]):
        width = "with at least one column" if feature_dim is None else f"with feature_dim={feature_dim}"
        raise ValueError(
            f"{prefix}features must be a matrix (num_samples, feature_dim) {width}; got {tuple(features.shape)}. "
            "Pool or flatten them to one row per sample, from the same layer for all samples."
        )
    if not features.is_floating_point():
        raise TypeError(f"{prefix}features must be floating-point; got {features.dtype}. Use {prefix}features.float().")
    if labels.dtype not in LABEL_TYPES:
        raise TypeError(
            f"{prefix}labels must be class indices, int8 to int64 or uint8; got {labels.dtype}. "
            "Use labels.long(), or labels.argmax(dim=1) for soft labels."
        )
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"{prefix}labels must be (num_samples,) = ({len(features)},), one per row of {prefix}features; "
            f"got {tuple(labels.shape)}. Take both from the same samples, and labels.argmax(dim=1) of one-hot labels."
        )
    lowest, highest = (int(labels.min()), int(labels.max())) if len(labels) > 0 else (0, -1)
    if num_classes is None:
        if highest > 1000 + 10 * len(labels):
            raise ValueError(
                f"labels must be class indices from 0; got up to {highest} for {len(labels)} samples. "
                "Number the classes from 0, or pass num_classes."
            )
        num_classes = highest + 1
    check_num_classes(num_classes)
    if lowest < 0 or highest >= num_classes:
        raise ValueError(
            f"{prefix}labels must be from 0 to num_classes - 1 = {num_classes - 1}; got values from {lowest} to {highest}. "
            "Number the classes from 0, leave out samples of other classes, or pass a larger num_classes."
        )
    check_sizes(features, f"{prefix}features")
    return num_classes
