"""Predictions and margins of samples agree in float32 and float64."""

import pytest
import torch

from guided_collapse.metrics.samples import LinearScores, Measured, centered_points, count_samples
from guided_collapse.metrics.statistics import class_statistics
from tests.metrics.cases import case


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_score_that_is_largest_in_float64_wins(dtype, tied):
    features, center = torch.randn(200, 40), torch.randn(40, dtype=torch.float64)
    rows, offsets = torch.randn(6, 40, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    if tied:
        rows[1:], offsets = rows[0] * (1 + 1e-9 * torch.arange(1, 6)[:, None]), 1e-9 * offsets
    points, scores = centered_points(features, center, dtype), LinearScores(rows, offsets)
    products = scores.products(points)
    assert products.dtype == dtype
    expected = ((features.double() - center) @ rows.T + offsets).argmax(dim=1)
    assert torch.equal(scores.largest(products, points), expected)
    assert torch.equal((products + offsets.to(dtype)).argmax(dim=1), expected) == (dtype == torch.float64 or not tied)


def test_points_near_a_far_center_keep_their_digits():
    center = 1000 + torch.rand(40, dtype=torch.float64)
    features = (center + 1e-3 * torch.randn(50, 40, dtype=torch.float64)).float()
    points = centered_points(features, center, torch.float32)
    torch.testing.assert_close(points.values.double(), features.double() - center, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(points.norms, (features.double() - center).norm(dim=1), rtol=1e-6, atol=0)


def counted(features, labels, weight, bias=None):
    measured = Measured(class_statistics(features, labels, len(weight)), weight, bias, "samples", False)
    return count_samples(measured, features, labels)


@pytest.mark.parametrize(("scale", "weight_scale"), [(1e-25, 1e-25), (1e25, 1e25), (1.0, 1e-30), (1.0, 1e25), (1e25, 1.0)])
def test_values_beyond_float32_are_computed_in_float64(scale, weight_scale):
    data = case("balanced", dtype=torch.float32)
    usual = counted(data.features, data.labels, data.weight)
    scaled = counted(data.features * scale, data.labels, data.weight * weight_scale)
    assert scaled.counts.tolist() == usual.counts.tolist()
    torch.testing.assert_close(scaled.margins, usual.margins, rtol=0, atol=2e-6)


def test_a_sample_at_the_global_mean_has_no_margin():
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    found = counted(features, torch.tensor([0, 1, 0, 1]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    assert found.margins.tolist() == [2.0, 2.0]
    assert int(found.counts[0]) == 4
