"""The whole measurement: every metric from finished statistics, and from features that are all at hand."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.checks import check_classifier, check_matching, check_samples
from guided_collapse.metrics.formulas.frames import angle_deviation, nearest_frame_distance, norm_variation, simplex_deviation
from guided_collapse.metrics.formulas.measured import Measured
from guided_collapse.metrics.formulas.products import norm_of_any_size
from guided_collapse.metrics.formulas.samples import SampleCounts, count_samples
from guided_collapse.metrics.formulas.statistics import GlobalMean, class_statistics
from guided_collapse.metrics.formulas.variability import (
    between_classes,
    class_distance_normalised_variance,
    trace_ratio,
    variability_collapse,
    variability_collapse_index,
)
from guided_collapse.metrics.omissions import frame_exists, left_out, notes
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
    centre_weight: bool = False,
) -> CollapseResult:
    """How collapsed features are, and with a weight, how they and the classifier fit together.

    The features are to be those that the weight is multiplied with, of clean data, from a model in eval mode. Classes without
    samples have no mean and are left out of all that involves class means; the result names them. Numbers are right to about 1e-6
    for float32 features (VCI to 1e-4) and 1e-9 for float64 ones.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.
        weight: W, (num_classes, feature_dim), as in nn.Linear; None leaves out what needs it.
        bias: b, (num_classes,); None for a classifier without one.
        num_classes: C; None takes the rows of the weight, or else the largest label + 1.
        test_features: (num_test_samples, feature_dim); their nearest centres are the class means of `features`.
        test_labels: (num_test_samples,).
        global_mean: "samples", the mean of all samples, as in the paper, or "classes", the mean of the class means.
        centre_weight: whether weights are centred by their mean before NC2, NC3, equinorm and equiangularity; the paper does not.
            Cosine margins always use centred weights.

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
        num_classes = len(weight) if weight is not None else _classes_shown_by(labels)
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
    measured = Measured(class_statistics(features, labels, num_classes), weight, bias, global_mean, centre_weight)
    test_samples = None
    if test_features is not None and test_labels is not None:
        test_samples = count_samples(measured, test_features, test_labels)
    return collapse_result(measured, count_samples(measured, features, labels), test_samples)


def collapse_result(
    measured: Measured, samples: SampleCounts | None = None, test_samples: SampleCounts | None = None
) -> CollapseResult:
    """Every metric that finished statistics, a classifier and counts over samples give.

    Args:
        measured: statistics and classifier.
        samples: of the samples that the statistics were taken of; None leaves out what needs them.
        test_samples: of other samples.
    """
    statistics, means, weight = measured.statistics, measured.centred_class_means, measured.measured_weight
    num_classes, feature_dim = len(statistics.counts), means.shape[1]
    known_weight = None if weight is None else weight[statistics.present]
    gram, weight_gram = means @ means.T, None if weight is None else weight @ weight.T
    between = between_classes(means, gram, torch.linalg.vector_norm(statistics.class_means, dim=1).max())
    cdnv = class_distance_normalised_variance(statistics, gram)
    if len(between.values) == 0:
        # What is left is rounding error, whose shape must not be taken for that of the means.
        means, gram = torch.zeros_like(means), torch.zeros_like(gram)
    mean_equinorm = norm_variation(means)
    ranks = statistics.numerical_ranks
    seen, test = _shares(measured, samples), _shares(measured, test_samples)
    return CollapseResult(
        nc1=variability_collapse(statistics, between),
        nc2=None if weight_gram is None else simplex_deviation(weight_gram),
        nc2_means=simplex_deviation(gram),
        nc3=None if known_weight is None else simplex_deviation(known_weight @ means.T),
        nc4=seen.disagreement,
        bias_collapse=None if measured.centre_logits is None else float(norm_of_any_size(measured.centre_logits)),
        weight_equinorm=None if weight is None else norm_variation(weight),
        mean_equinorm=mean_equinorm,
        equinorm=None if known_weight is None else abs(norm_variation(known_weight) - mean_equinorm),
        weight_equiangularity=None if weight_gram is None else angle_deviation(weight_gram),
        mean_equiangularity=angle_deviation(gram),
        etf_distance=nearest_frame_distance(gram) if frame_exists(measured) else None,
        mean_cosine_margin=seen.mean_margin,
        ideal_cosine_margin=num_classes / (num_classes - 1),
        cosine_margins=None if samples is None or weight is None else samples.margins.sort().values,
        cdnv=cdnv,
        vci=variability_collapse_index(statistics, between),
        trace_ratio=trace_ratio(statistics, means),
        numerical_rank=None if ranks is None else float(ranks.mean()),
        numerical_ranks=None if ranks is None else tuple(ranks.tolist()),
        accuracy=seen.accuracy,
        nearest_centre_accuracy=seen.nearest_centre_accuracy,
        test_nc4=test.disagreement,
        test_accuracy=test.accuracy,
        test_nearest_centre_accuracy=test.nearest_centre_accuracy,
        test_mean_cosine_margin=test.mean_margin,
        num_samples=statistics.num_samples,
        num_classes=num_classes,
        feature_dim=feature_dim,
        counts=tuple(statistics.counts.tolist()),
        missing_classes=tuple(statistics.missing.tolist()),
        between_class_rank=len(between.values),
        global_mean=measured.global_mean,
        centre_weight=measured.centre_weight,
        left_out=left_out(measured, samples, test_samples),
        notes=notes(measured, len(between.values), samples, test_samples),
    )


def _classes_shown_by(labels: Tensor) -> int:
    """The largest label + 1, unless it is so far beyond the number of samples that the labels are no class indices."""
    if len(labels) == 0:
        raise ValueError("features must have at least one row; got none. Measure on some data.")
    largest = int(labels.max())
    if largest > 1000 + 10 * len(labels):
        raise ValueError(
            f"labels must be class indices from 0; got up to {largest} for {len(labels)} samples. "
            "Number the classes from 0, or pass num_classes."
        )
    return largest + 1


class _Shares(NamedTuple):
    """Counts over samples as shares of all, None where they are unknown."""

    disagreement: float | None = None
    accuracy: float | None = None
    nearest_centre_accuracy: float | None = None
    mean_margin: float | None = None


def _shares(measured: Measured, samples: SampleCounts | None) -> _Shares:
    if samples is None:
        return _Shares()
    number = int(samples.num_samples)
    nearest_centre_accuracy = int(samples.centre_correct) / number
    if measured.weight is None:
        return _Shares(nearest_centre_accuracy=nearest_centre_accuracy)
    # The mean of no margins at all is NaN, as it should be.
    mean_margin = float(samples.margins.mean())
    return _Shares(int(samples.disagreements) / number, int(samples.correct) / number, nearest_centre_accuracy, mean_margin)
