"""Decisions and margins of samples, in float32 as in float64."""

import pytest
import torch

from guided_collapse.metrics.samples import LinearScores, Measured, centered_points, count_samples
from guided_collapse.metrics.statistics import class_statistics
from tests.metrics.cases import case


def setup(scale=1.0, dtype=torch.float32):
    features = scale * torch.randn(200, 40).to(dtype)
    rows, offsets = torch.randn(6, 40, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    return features, scale * torch.randn(40, dtype=torch.float64), rows, offsets


def exact(features, center, rows, offsets):
    return (features.double() - center) @ rows.T + offsets


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_score_wins(dtype):
    features, center, rows, offsets = setup()
    points, scores = centered_points(features, center, dtype), LinearScores(rows, offsets)
    products = scores.products(points)
    assert products.dtype == dtype
    assert torch.equal(scores.largest(products, points), exact(features, center, rows, offsets).argmax(dim=1))


def test_ties_in_float32_are_decided_in_float64():
    features, center, rows, offsets = setup()
    rows[1:] = rows[0] * (1 + 1e-9 * torch.arange(1, 6)[:, None])
    offsets[:] = 1e-9 * torch.randn(6)
    points, scores = centered_points(features, center, torch.float32), LinearScores(rows, offsets)
    products = scores.products(points)
    expected = exact(features, center, rows, offsets).argmax(dim=1)
    assert torch.equal(scores.largest(products, points), expected)
    assert not torch.equal((products + offsets.float()).argmax(dim=1), expected)


def test_points_near_a_far_center_keep_their_digits():
    center = 1000 + torch.rand(40, dtype=torch.float64)
    features = (center + 1e-3 * torch.randn(50, 40, dtype=torch.float64)).float()
    points = centered_points(features, center, torch.float32)
    torch.testing.assert_close(points.values.double(), features.double() - center, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(points.norms, (features.double() - center).norm(dim=1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_what_float32_cannot_hold_is_in_float64(scale):
    features, center, rows, offsets = setup(scale)
    assert centered_points(features, center, torch.float32).values.dtype == torch.float64
    points = centered_points(features / scale, center / scale, torch.float32)
    assert points.values.dtype == torch.float32
    for scores in (LinearScores(rows * scale, offsets), LinearScores(rows, offsets / 1e-30)):
        products = scores.products(points)
        assert products.dtype == torch.float64
        expected = exact(features / scale, center / scale, scores.rows, scores.offsets).argmax(dim=1)
        assert torch.equal(scores.largest(products, points), expected)


def counted(features, labels, weight, bias=None):
    return count_samples(
        Measured(class_statistics(features, labels, len(weight)), weight, bias, "samples", False), features, labels
    )


def test_close_decisions_in_float32_are_those_of_float64():
    # Two classes whose means and weights differ by less than float32 can tell from sums over 300 dimensions.
    labels = torch.arange(600) % 3
    means = torch.randn(3, 300)
    means[1] = means[0] * (1 + 1e-6)
    features = means[labels] + 1e-6 * torch.randn(600, 300)
    wide = counted(features.double(), labels, means.double())
    narrow = counted(features, labels, means)
    for name in ("center_correct", "correct", "disagreements"):
        assert getattr(narrow, name) == getattr(wide, name), name


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_extreme_scales_neither_overflow_nor_vanish(scale):
    data = case("balanced", dtype=torch.float32)
    usual = counted(data.features, data.labels, data.weight)
    scaled = counted(data.features * scale, data.labels, data.weight * scale)
    assert scaled.correct == usual.correct
    torch.testing.assert_close(scaled.margins, usual.margins, rtol=0, atol=2e-6)


def test_a_sample_at_the_global_mean_has_no_margin():
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    found = counted(features, torch.tensor([0, 1, 0, 1]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert found.margins.tolist() == [2.0, 2.0]
    assert int(found.num_samples) == 4


def test_the_bias_takes_part_in_the_prediction():
    data = case("balanced")
    bias = torch.zeros(6, dtype=torch.float64)
    bias[2] = 1e6
    assert int(counted(data.features, data.labels, data.weight, bias).correct) == 12
