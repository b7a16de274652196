import pytest
import torch

from guided_collapse.metrics.formulas.measured import Measured
from guided_collapse.metrics.formulas.samples import count_samples
from guided_collapse.metrics.formulas.statistics import class_statistics
from tests.metrics.cases import case


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
