import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from guided_collapse import measure_collapse, nearest_etf, simplex_etf
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.tight import nearest_frame, tight_frame
from guided_collapse.metrics import formulas
from guided_collapse.metrics.declared import best_margin
from guided_collapse.metrics.formulas import (
    angle_deviation,
    between_classes,
    class_distance_normalized_variance,
    cross_entropy_lower_bound,
    frame_deviation,
    least_margin,
    nearest_frame_distance,
    norm_variation,
    smallest_angle,
    variability_collapse,
    variability_collapse_index,
)
from guided_collapse.metrics.statistics import ClassStatistics, class_statistics
from tests.metrics import exact, oracle
from tests.metrics.cases import Case, filled


def test_the_closed_form_distance_equals_that_of_the_nearest_frame():
    means = torch.randn(5, 9, dtype=torch.float64)
    means -= means.mean(dim=0)
    assert nearest_frame_distance(3 * means) == pytest.approx(float(nearest_etf(means).distance), rel=1e-10)
    means = torch.randn(9, 3, dtype=torch.float64)
    means -= means.mean(dim=0)
    nearest = nearest_frame(means, unit_rows=False)
    assert nearest_frame_distance(3 * means) == pytest.approx(float(nearest.distance), rel=1e-10)


def test_centered_tight_frames_have_no_deviation_and_are_dual_to_themselves_and_their_pseudoinverse():
    for num_classes, feature_dim in ((4, 6), (7, 6), (9, 6), (20, 3), (3, 1)):
        frame = tight_frame(feature_dim, num_classes, direction="random", unit_rows=False, dtype=torch.float64)
        assert frame_deviation(frame) < 1e-14
        assert frame_deviation(frame, 3 * frame) < 1e-14
        # The rows of the pseudoinverse of any means are their dual.
        means = center_classes(torch.randn(num_classes, feature_dim, dtype=torch.float64))
        assert frame_deviation(torch.linalg.pinv(means).T, means) < 1e-12
        assert frame_deviation(means) > 1e-2 or num_classes <= 3
        assert frame_deviation(frame, -frame) > 1
        assert frame_deviation(frame + 1) > 1e-2


def test_the_deviation_is_the_minimum_over_tight_frames():
    weight, means = torch.randn(2, 9, 3, dtype=torch.float64) + 0.3
    product = functional.normalize((weight @ means.T).flatten(), dim=0).view(9, 9)
    least = frame_deviation(weight, means)
    for direction in center_classes(torch.randn(9, 300 * 3, dtype=torch.float64)).split(3, dim=1):
        columns = torch.linalg.qr(direction).Q
        assert torch.linalg.vector_norm(product - columns @ columns.T / math.sqrt(3)) > least
    # Rank-deficient means leave directions of the frame open.
    flat = means * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    assert frame_deviation(flat) == pytest.approx(oracle.frame_deviation((flat @ flat.T).numpy(), 3), rel=1e-10)


def test_angles_and_margins_of_well_known_frames():
    orthoplex = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    assert smallest_angle(2 * orthoplex) == pytest.approx(90)
    assert least_margin(3 * orthoplex, orthoplex, torch.arange(6)) == pytest.approx(best_margin(3, 6))
    polygon = tight_frame(2, 7, dtype=torch.float64)
    assert smallest_angle(polygon) == pytest.approx(360 / 7)
    assert least_margin(polygon, polygon, torch.arange(7)) == pytest.approx(best_margin(2, 7))
    assert least_margin(polygon[2:3], polygon, torch.tensor([3])) == pytest.approx(float(polygon[2] @ polygon[3]) - 1)
    near = torch.tensor([[1.0, 0.0], [1.0, 1e-9]], dtype=torch.float64)
    assert smallest_angle(near) == pytest.approx(math.degrees(1e-9), rel=1e-6)


@pytest.mark.parametrize("numbers_at_once", [1, 20, 50])
def test_large_numbers_of_pairs_are_processed_in_blocks(numbers_at_once, monkeypatch):
    rows, weight = torch.randn(2, 9, 3, dtype=torch.float64)
    classes = torch.randperm(9)
    whole = smallest_angle(rows), least_margin(rows, weight, classes)
    monkeypatch.setattr(formulas, "NUMBERS_AT_ONCE", numbers_at_once)
    assert (smallest_angle(rows), least_margin(rows, weight, classes)) == pytest.approx(whole, rel=1e-12)
    rows[4] = 0
    assert math.isnan(smallest_angle(rows))
    assert math.isnan(least_margin(rows, weight, classes))


def test_zero_rows_give_nan():
    nothing = torch.zeros(4, 6, dtype=torch.float64)
    assert math.isnan(norm_variation(nothing))
    assert math.isnan(angle_deviation(nothing))
    assert math.isnan(nearest_frame_distance(nothing))
    assert math.isnan(least_margin(nothing, nothing, torch.arange(4)))
    for rows in (nothing, nothing[:, :2]):
        assert math.isnan(frame_deviation(rows))
        assert math.isnan(smallest_angle(rows))


def test_two_opposite_rows_are_a_frame_and_equal_ones_are_not():
    row = torch.randn(1, 3, dtype=torch.float64)
    opposite, equal = torch.cat([row, -2 * row]), torch.cat([row, row])
    assert angle_deviation(opposite) == pytest.approx(0, abs=1e-15)
    assert angle_deviation(equal) == pytest.approx(2)
    assert norm_variation(torch.cat([row, -3 * row])) == pytest.approx(math.sqrt(2) / 2)


@pytest.mark.parametrize(("num_classes", "scale"), [(2, 1.0), (10, 5.0), (100, 0.1), (1000, 20.0)])
def test_the_lower_bound_is_the_loss_of_a_collapsed_model(num_classes, scale):
    frame = simplex_etf(num_classes, dtype=torch.float64)
    loss = functional.cross_entropy(scale * frame @ frame.T, torch.arange(num_classes))
    assert cross_entropy_lower_bound(num_classes, scale) == pytest.approx(loss.item(), rel=1e-12)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_lower_bound_needs_a_positive_scale(scale):
    with pytest.raises(ValueError, match="scale must be a positive, finite number; got"):
        cross_entropy_lower_bound(10, scale)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        cross_entropy_lower_bound(1, 5.0)


def directions(rows, magnitude):
    return between_classes(rows, torch.tensor(magnitude))


@pytest.mark.parametrize("smallest", [0.9, 1e-2, 1e-5, 1e-9])
def test_directions_of_badly_conditioned_means(smallest):
    left = torch.linalg.qr(torch.cat([torch.ones(5, 1), torch.randn(5, 4)], dim=1).double()).Q[:, 1:]
    right = torch.linalg.qr(torch.randn(8, 4, dtype=torch.float64)).Q
    values = torch.tensor([3.0, 2.0, 1.5, smallest], dtype=torch.float64)
    found = directions(left * values @ right.T, 3.0)
    torch.testing.assert_close(found.values, values, rtol=1e-6, atol=0)
    torch.testing.assert_close((found.directions * right).sum(dim=0).abs(), torch.ones(4, dtype=torch.float64), rtol=1e-6, atol=0)


def test_directions_of_more_classes_than_dimensions():
    rows = center_classes(torch.randn(9, 3, dtype=torch.float64) * torch.tensor([1.0, 1e-2, 1e-6], dtype=torch.float64))
    for scale in (1.0, 1e-80):
        found = directions(scale * rows, 3.0 * scale)
        _, values, directions_of_svd = torch.linalg.svd(scale * rows)
        torch.testing.assert_close(found.values, values, rtol=1e-6, atol=0)
        torch.testing.assert_close(found.directions.abs(), directions_of_svd.T.abs(), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(found.spread @ found.spread.T, scale**2 * rows.T @ rows, rtol=1e-6, atol=0)


def test_singular_values_at_rounding_level_are_dropped():
    rows = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 1e-17], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert len(directions(rows, 1.0).values) == 1


def test_nc1_is_nonnegative_despite_rounding():
    means = torch.tensor([[0.0, 1e-4], [0.0, -1e-4]], dtype=torch.float64)
    scatter = torch.tensor([[1.0, 0.0], [0.0, -1e-8]], dtype=torch.float64)
    statistics = ClassStatistics(torch.tensor([5, 5]), means, scatter, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert variability_collapse(statistics, directions(means, 1e-4)) == 0


@pytest.mark.parametrize("numbers_at_once", [1, 6, 2**24])
def test_means_that_nearly_coincide_keep_their_distance(numbers_at_once, monkeypatch):
    monkeypatch.setattr(formulas, "NUMBERS_AT_ONCE", numbers_at_once)
    gap = 1e-9
    features = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 1 + gap], [2.0, 1 + gap], [9.0, 9.0], [11.0, 9.0]], dtype=torch.float64)
    statistics = class_statistics(features, torch.tensor([1, 1, 2, 2, 0, 0]), 3)
    found = class_distance_normalized_variance(statistics, statistics.class_means)
    distance = ((1 + gap) - 1) ** 2
    assert found == pytest.approx((2 / (2 * distance) + 2 / (2 * (81 + 64)) * 2) / 3, rel=1e-6)


def test_the_index_without_scatter_in_some_directions():
    # Scatter only in a direction in which the means do not differ: collapsed as far as classes are concerned.
    features = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    statistics = class_statistics(features, torch.tensor([0, 0, 1, 1]), 2)
    between = directions(statistics.class_means, 1.0)
    assert 0 <= variability_collapse_index(statistics, between) < 1e-12
    broken = class_statistics(features, torch.tensor([0, 0, 1, 1]), 2)
    broken.scatter[0, 0] = -5.0
    assert math.isnan(variability_collapse_index(broken, between))


def dependent_dimensions(means, noise, generator):
    kept = generator.integers(1, means.shape[1] + 1)
    return (means + noise)[:, :kept] @ generator.integers(-2, 3, (kept, means.shape[1]))


KINDS = {
    "noisy": lambda means, noise, generator: means + noise,
    "behind a ReLU": lambda means, noise, generator: np.maximum(means + noise, 0),
    "constant within classes": lambda means, noise, generator: means + noise * (generator.random(means.shape[1]) < 0.6),
    "dependent dimensions": dependent_dimensions,
    "constant dimensions": lambda means, noise, generator: np.where(generator.random(means.shape[1]) < 0.6, means + noise, 0.1),
    "units": lambda means, noise, generator: (means + noise) * 2.0 ** generator.integers(-10, 11, means.shape[1]),
    "nearly collapsed": lambda means, noise, generator: means + noise * 2.0**-20,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_of_few_or_degenerate_samples_agrees_with_exact_arithmetic(kind):
    generator = np.random.default_rng(0)
    for _ in range(20):
        num_classes, width = generator.integers(2, 9), generator.integers(1, 9)
        number = generator.integers(num_classes, num_classes + width + 10)
        labels = np.concatenate([np.arange(num_classes), generator.integers(0, num_classes, number - num_classes)])
        means = generator.integers(-99, 100, (num_classes, width)) / 64
        noise = generator.integers(-99, 100, (number, width)) / 2.0 ** generator.integers(4, 10)
        features = KINDS[kind](means[labels], noise, generator)
        expected = exact.variability_collapse_index(features.tolist(), labels.tolist())
        data = Case(torch.tensor(features), torch.tensor(labels), torch.zeros(num_classes, width), torch.zeros(num_classes))
        # If it is 0, only up to rounding.
        assert measure_collapse(data.features, data.labels).vci == pytest.approx(expected, rel=1e-7, abs=1e-12)
        assert filled(data, [5]).compute().vci == pytest.approx(expected, rel=1e-7, abs=1e-12)
        if kind != "nearly collapsed":
            assert measure_collapse(data.features.float(), data.labels).vci == pytest.approx(expected, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("num_samples", [60, 100, 500])
def test_the_index_of_float32_features_in_a_subspace_agrees_with_float64(num_samples):
    labels = torch.arange(num_samples) % 10
    features = (torch.randn(10, 20)[labels] + torch.randn(num_samples, 20)) @ torch.randn(20, 50)
    expected = measure_collapse(features.double(), labels).vci
    assert measure_collapse(features, labels).vci == pytest.approx(expected, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("num_classes", [5, 400])
def test_constant_dimensions_do_not_separate_classes(num_classes):
    labels = torch.arange(3 * num_classes) % num_classes
    features = torch.randn(num_classes, 5, dtype=torch.float64)[labels] + torch.randn(len(labels), 5)
    constant = torch.full((len(labels), 1), 1000.1, dtype=torch.float64)
    data = Case(torch.cat([constant, features], dim=1), labels, torch.zeros(num_classes, 6), torch.zeros(num_classes))
    without = measure_collapse(features, labels)
    share = min(5, num_classes - 1) / min(6, num_classes - 1)
    for result in (measure_collapse(data.features, labels), filled(data, [37]).compute()):
        assert result.between_class_rank == without.between_class_rank
        assert result.nc1 == pytest.approx(without.nc1, rel=1e-9)
        assert 1 - result.vci == pytest.approx((1 - without.vci) * share, rel=1e-9)
