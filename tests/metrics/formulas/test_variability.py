import math

import numpy as np
import pytest
import torch

from guided_collapse.geometry.simplex import center_classes
from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.formulas import products
from guided_collapse.metrics.formulas.statistics import ClassStatistics, class_statistics
from guided_collapse.metrics.formulas.variability import (
    between_classes,
    class_distance_normalized_variance,
    variability_collapse,
    variability_collapse_index,
)
from tests.metrics import exact
from tests.metrics.cases import Case
from tests.metrics.machinery.test_streaming import filled


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


def test_values_at_rounding_level_are_cut():
    rows = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 1e-17], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert len(directions(rows, 1.0).values) == 1


def test_rounding_below_zero_makes_no_negative_nc1():
    means = torch.tensor([[0.0, 1e-4], [0.0, -1e-4]], dtype=torch.float64)
    scatter = torch.tensor([[1.0, 0.0], [0.0, -1e-8]], dtype=torch.float64)
    statistics = ClassStatistics(torch.tensor([5, 5]), means, scatter, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert variability_collapse(statistics, directions(means, 1e-4)) == 0


@pytest.mark.parametrize("numbers_at_once", [1, 6, 2**24])
def test_means_that_nearly_coincide_keep_their_distance(numbers_at_once, monkeypatch):
    monkeypatch.setattr(products, "NUMBERS_AT_ONCE", numbers_at_once)
    gap = 1e-9
    features = torch.tensor([[0.0, 1.0], [2.0, 1.0], [0.0, 1 + gap], [2.0, 1 + gap], [9.0, 9.0], [11.0, 9.0]], dtype=torch.float64)
    statistics = class_statistics(features, torch.tensor([1, 1, 2, 2, 0, 0]), 3)
    found = class_distance_normalized_variance(statistics, statistics.class_means)
    distance = ((1 + gap) - 1) ** 2
    assert found == pytest.approx((2 / (2 * distance) + 2 / (2 * (81 + 64)) * 2) / 3, rel=1e-6)


def test_index_without_scatter_in_some_directions():
    # Scatter in a direction in which the means do not differ, and none elsewhere: collapsed, as far as classes go.
    features = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    statistics = class_statistics(features, torch.tensor([0, 0, 1, 1]), 2)
    between = directions(statistics.class_means, 1.0)
    assert 0 <= variability_collapse_index(statistics, between) < 1e-12
    broken = class_statistics(features, torch.tensor([0, 0, 1, 1]), 2)
    broken.scatter[0, 0] = -5.0
    assert math.isnan(variability_collapse_index(broken, between))


def noisy(means, noise, generator):
    return means + noise


def behind_a_relu(means, noise, generator):
    return np.maximum(means + noise, 0)


def constant_within_classes_in_some_dimensions(means, noise, generator):
    return means + noise * (generator.random(means.shape[1]) < 0.6)


def dependent_dimensions(means, noise, generator):
    kept = generator.integers(1, means.shape[1] + 1)
    return (means + noise)[:, :kept] @ generator.integers(-2, 3, (kept, means.shape[1]))


def constant_in_some_dimensions(means, noise, generator):
    return np.where(generator.random(means.shape[1]) < 0.6, means + noise, 0.1)


def in_units_of_their_own(means, noise, generator):
    return (means + noise) * 2.0 ** generator.integers(-10, 11, means.shape[1])


def nearly_collapsed(means, noise, generator):
    return means + noise * 2.0**-20


@pytest.mark.parametrize(
    "kind",
    [
        noisy,
        behind_a_relu,
        constant_within_classes_in_some_dimensions,
        dependent_dimensions,
        constant_in_some_dimensions,
        in_units_of_their_own,
        nearly_collapsed,
    ],
)
def test_the_index_of_few_or_degenerate_samples_is_that_of_exact_arithmetic(kind):
    generator = np.random.default_rng(0)
    for _ in range(20):
        num_classes, width = generator.integers(2, 9), generator.integers(1, 9)
        number = generator.integers(num_classes, num_classes + width + 10)
        labels = np.concatenate([np.arange(num_classes), generator.integers(0, num_classes, number - num_classes)])
        means = generator.integers(-99, 100, (num_classes, width)) / 64
        noise = generator.integers(-99, 100, (number, width)) / 2.0 ** generator.integers(4, 10)
        features = kind(means[labels], noise, generator)
        expected = exact.variability_collapse_index(features.tolist(), labels.tolist())
        data = Case(torch.tensor(features), torch.tensor(labels), torch.zeros(num_classes, width), torch.zeros(num_classes))
        # Where it is 0, no more can be asked than rounding level.
        assert measure_collapse(data.features, data.labels).vci == pytest.approx(expected, rel=1e-7, abs=1e-12)
        assert filled(data, [5]).compute().vci == pytest.approx(expected, rel=1e-7, abs=1e-12)
        if kind != nearly_collapsed:
            assert measure_collapse(data.features.float(), data.labels).vci == pytest.approx(expected, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("num_samples", [60, 100, 500])
def test_the_index_of_float32_features_in_a_subspace_is_that_of_float64(num_samples):
    labels = torch.arange(num_samples) % 10
    features = (torch.randn(10, 20)[labels] + torch.randn(num_samples, 20)) @ torch.randn(20, 50)
    expected = measure_collapse(features.double(), labels).vci
    assert measure_collapse(features, labels).vci == pytest.approx(expected, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("num_classes", [5, 400])
def test_a_constant_dimension_is_no_difference_between_classes(num_classes):
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
