"""The measurement: from features that are all at hand, every metric or one at a time; and from finished statistics."""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.declaration import best_margin
from guided_collapse.geometry.simplex import center_classes, check_num_classes
from guided_collapse.geometry.bounds import largest_cosine_bound
from guided_collapse.lazy import imported
from guided_collapse.metrics.checks import check_classifier, check_matching, check_not_vanishing, check_samples, classes_shown_by
from guided_collapse.metrics.declared import entries
from guided_collapse.metrics.formulas.double_precision import where_float64_is
from guided_collapse.metrics.formulas.frames import (
    angle_deviation,
    frame_deviation,
    least_margin,
    nearest_frame_distance,
    norm_variation,
    smallest_angle,
)
from guided_collapse.metrics.formulas.measured import Measured, has_simplex
from guided_collapse.metrics.formulas.products import norm_of_any_size
from guided_collapse.metrics.formulas.samples import SampleCounts, count_samples
from guided_collapse.metrics.formulas.statistics import GlobalMean, class_statistics
from guided_collapse.metrics.formulas.variability import (
    between_classes,
    class_distance_normalized_variance,
    trace_ratio,
    variability_collapse,
    variability_collapse_index,
)
from guided_collapse.metrics.omissions import left_out, notes
from guided_collapse.metrics.result import CollapseResult


@torch.no_grad()
def measure_collapse(
    features: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_classes: int | None = None,
    test_features: Tensor | None = None,
    test_labels: Tensor | None = None,
    global_mean: GlobalMean = "samples",
    center_weight: bool = False,
) -> CollapseResult:
    """How collapsed features are, and with a weight, how they and the classifier fit together.

    The features are to be those that the weight is multiplied with, of clean data, from a model in eval mode. Classes without
    samples have no mean and are left out of all that involves class means; the result names them. Numbers are right to about 1e-6
    for float32 features (VCI to 1e-4) and 1e-9 for float64 ones. It takes float64: features on a device without it (Apple's) are
    measured on the CPU.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.
        weight: W, (num_classes, feature_dim), as in nn.Linear; None leaves out what needs it.
        bias: b, (num_classes,); None for a classifier without one.
        num_classes: C; None takes the rows of the weight, or else the largest label + 1.
        test_features: (num_test_samples, feature_dim); their nearest centers are the class means of `features`.
        test_labels: (num_test_samples,).
        global_mean: "samples", the mean of all samples, as in the paper, or "classes", the mean of the class means.
        center_weight: whether weights are centered by their mean before NC2, NC3, equinorm and equiangularity; the paper does not.
            Cosine margins always use centered weights.

    Returns:
        All metrics in one object; print it for a table.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse import measure_collapse, simplex_etf
        >>> labels = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> result = measure_collapse(simplex_etf(3)[labels], labels, simplex_etf(3))
        >>> round(result.nc1, 6), round(result.nc3, 6), result.accuracy
        (0.0, 0.0, 1.0)
    """
    check_matching(features, labels)
    if num_classes is None:
        num_classes = len(weight) if weight is not None else classes_shown_by(labels)
    check_classifier(weight, bias, num_classes, features.shape[1])
    check_samples(features, labels, num_classes)
    if (test_features is None) != (test_labels is None):
        given = "test_labels" if test_features is None else "test_features"
        raise ValueError(f"test_features and test_labels go together; got {given} alone. Pass both or neither.")
    if test_features is not None and test_labels is not None:
        check_samples(test_features, test_labels, num_classes, feature_dim=features.shape[1], prefix="test_")
        if len(test_features) == 0:
            raise ValueError("test_features must have at least one row; got none. Leave out both test arrays if there are none.")

    labels = labels.to(features.device)
    measured = Measured(class_statistics(features, labels, num_classes), weight, bias, global_mean, center_weight)
    test_samples = None
    if test_features is not None and test_labels is not None:
        test_samples = count_samples(measured, test_features, test_labels)
    return collapse_result(measured, count_samples(measured, features, labels), test_samples)


def nc1(features: Tensor, labels: Tensor) -> float:
    """Within-class variability: tr(S_W pinv(S_B)) / C, 0 at collapse.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse.metrics import nc1
        >>> nc1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1]))
        0.0
    """
    return measure_collapse(features, labels).nc1


@torch.no_grad()
def nc2(weight: Tensor) -> float:
    """How far the weights are from a simplex ETF: | WW'/|WW'|_F - P/sqrt(C-1) |_F with P = I - 11'/C, 0 at collapse.

    For C > d + 1 there is none, and it is how far they are from a tight frame: Pi/sqrt(d) takes the place of P/sqrt(C-1), with the
    nearest projector Pi of rank d on the complement of 1.

    Args:
        weight: W, (num_classes, feature_dim), as in nn.Linear.

    Raises:
        ValueError: for a weight that is not a finite floating-point matrix of at least two rows.

    Example:
        >>> import torch
        >>> from guided_collapse import simplex_etf
        >>> from guided_collapse.metrics import nc2
        >>> round(nc2(simplex_etf(4)), 6), round(nc2(torch.eye(4)), 6)
        (0.0, 0.517638)
    """
    check_classifier(weight, None, len(weight), weight.shape[-1])
    check_num_classes(len(weight))
    check_not_vanishing(weight, "weight")
    exact = where_float64_is(weight).to(torch.float64)
    return frame_deviation(exact)


def nc3(features: Tensor, labels: Tensor, weight: Tensor) -> float:
    """How far weights and class means are from being dual: | W Hbar/|W Hbar|_F - P/sqrt(C-1) |_F, 0 at collapse.

    For C > d + 1 with Pi/sqrt(d) in the place of P/sqrt(C-1), as in `nc2`.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.
        weight: W, (num_classes, feature_dim), as in nn.Linear.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse import simplex_etf
        >>> from guided_collapse.metrics import nc3
        >>> labels = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> round(nc3(simplex_etf(3)[labels], labels, simplex_etf(3)), 6)
        0.0
    """
    return _with_weight(measure_collapse(features, labels, weight).nc3)


def nc4(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> float:
    """The share of samples whose predicted class is not that of the nearest class mean, 0 at collapse.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.
        weight: W, (num_classes, feature_dim), as in nn.Linear.
        bias: b, (num_classes,); None for a classifier without one.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse.metrics import nc4
        >>> features, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 1])
        >>> nc4(features, labels, torch.eye(2)), nc4(features, labels, torch.eye(2), torch.tensor([0.0, 2.0]))
        (0.0, 0.25)
    """
    return _with_weight(measure_collapse(features, labels, weight, bias).nc4)


def collapse_result(
    measured: Measured, samples: SampleCounts | None = None, test_samples: SampleCounts | None = None
) -> CollapseResult:
    """Every metric that finished statistics, a classifier and counts over samples give.

    Args:
        measured: statistics and classifier.
        samples: of the samples that the statistics were taken of; None leaves out what needs them.
        test_samples: of other samples.
    """
    statistics, means = measured.statistics, measured.centered_class_means
    weight, exact_weight = measured.judged_weight, measured.exact_weight
    num_classes, feature_dim = len(statistics.counts), means.shape[1]
    known_weight = None if weight is None else weight[statistics.present]
    between = between_classes(means, torch.linalg.vector_norm(statistics.class_means, dim=1).max())
    cdnv = class_distance_normalized_variance(statistics, means)
    if len(between.values) == 0:
        # What is left is rounding error, whose shape must not be taken for that of the means.
        means = torch.zeros_like(means)
    mean_equinorm = norm_variation(means)
    ranks = statistics.numerical_ranks
    seen, test = _shares(measured, samples), _shares(measured, test_samples)
    reasons = left_out(measured, samples, test_samples)
    return CollapseResult(
        nc1=variability_collapse(statistics, between),
        nc2=None if weight is None else frame_deviation(weight),
        nc2_means=frame_deviation(means),
        nc3=None if known_weight is None else frame_deviation(known_weight, means),
        nc4=seen.disagreement,
        bias_collapse=None if measured.center_logits is None else float(norm_of_any_size(measured.center_logits)),
        weight_equinorm=None if weight is None else norm_variation(weight),
        mean_equinorm=mean_equinorm,
        equinorm=None if known_weight is None else abs(norm_variation(known_weight) - mean_equinorm),
        weight_equiangularity=None
        if weight is None or not has_simplex(num_classes, feature_dim)
        else angle_deviation(weight @ weight.T),
        mean_equiangularity=angle_deviation(means @ means.T) if has_simplex(*means.shape) else None,
        weight_angle=None if weight is None else smallest_angle(weight),
        mean_angle=smallest_angle(means),
        ideal_angle=math.degrees(math.acos(largest_cosine_bound(feature_dim, num_classes))),
        etf_distance=nearest_frame_distance(means),
        class_margin=None if exact_weight is None else least_margin(means, center_classes(exact_weight), statistics.present),
        mean_cosine_margin=seen.mean_margin,
        ideal_cosine_margin=best_margin(num_classes, feature_dim),
        cosine_margins=None if samples is None or weight is None else samples.margins.sort().values,
        cdnv=cdnv,
        vci=variability_collapse_index(statistics, between),
        trace_ratio=trace_ratio(statistics, means),
        numerical_rank=None if ranks is None else float(ranks.mean()),
        numerical_ranks=None if ranks is None else tuple(ranks.tolist()),
        accuracy=seen.accuracy,
        nearest_center_accuracy=seen.nearest_center_accuracy,
        test_nc4=test.disagreement,
        test_accuracy=test.accuracy,
        test_nearest_center_accuracy=test.nearest_center_accuracy,
        test_mean_cosine_margin=test.mean_margin,
        num_samples=statistics.num_samples,
        num_classes=num_classes,
        feature_dim=feature_dim,
        counts=tuple(statistics.counts.tolist()),
        missing_classes=tuple(statistics.missing.tolist()),
        between_class_rank=len(between.values),
        global_mean=measured.global_mean,
        center_weight=measured.center_weight,
        left_out=reasons,
        notes=notes(measured, len(between.values), samples, test_samples),
        added=_added(measured, {"train": samples, "test": test_samples}, without=reasons),
    )


def _added(measured: Measured, samples: Mapping[str, SampleCounts | None], *, without: Collection[str]) -> dict[str, float | None]:
    """The metrics whose declarations name their formulas, None for those that are left out."""
    found: dict[str, float | None] = {}
    for entry in entries():
        if entry.metric.computed_by is not None:
            formula = imported(entry.metric.computed_by)
            found[entry.key] = None if entry.key in without else float(formula(measured, samples[entry.split]))
    return found


class _Shares(NamedTuple):
    """Counts over samples as shares of all, None where they are unknown."""

    disagreement: float | None = None
    accuracy: float | None = None
    nearest_center_accuracy: float | None = None
    mean_margin: float | None = None


def _shares(measured: Measured, samples: SampleCounts | None) -> _Shares:
    if samples is None:
        return _Shares()
    number = int(samples.num_samples)
    nearest_center_accuracy = int(samples.center_correct) / number
    if measured.weight is None:
        return _Shares(nearest_center_accuracy=nearest_center_accuracy)
    # The mean of no margins at all is NaN, as it should be.
    mean_margin = float(samples.margins.mean())
    return _Shares(int(samples.disagreements) / number, int(samples.correct) / number, nearest_center_accuracy, mean_margin)


def _with_weight(value: float | None) -> float:
    if value is None:
        raise ValueError("weight must be (num_classes, feature_dim); got none. Pass the classifier's weight, as in nn.Linear.")
    return value
