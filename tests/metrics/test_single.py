import pytest
import torch

from guided_collapse import metrics
from guided_collapse.metrics.collapse import measure_collapse
from tests.metrics import oracle
from tests.metrics.cases import SIZES, case


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SIZES)
def test_each_number_is_that_of_the_whole_measurement(name, dtype):
    features, labels, weight, bias = case(name, dtype=dtype)
    whole = measure_collapse(features, labels, weight, bias)
    assert metrics.nc1(features, labels) == whole.nc1
    assert metrics.nc2(weight) == whole.nc2
    assert metrics.nc3(features, labels, weight) == whole.nc3
    assert metrics.nc4(features, labels, weight, bias) == whole.nc4
    assert metrics.nc4(features, labels, weight) == measure_collapse(features, labels, weight).nc4


def test_each_number_is_that_of_its_formula():
    features, labels, weight, bias = case("imbalanced")
    expected = oracle.measure(*(array.numpy() for array in (features, labels, weight, bias)))
    found = {
        "nc1": metrics.nc1(features, labels),
        "nc2": metrics.nc2(weight.requires_grad_()),
        "nc3": metrics.nc3(features, labels, weight),
        "nc4": metrics.nc4(features, labels, weight, bias),
    }
    assert found == pytest.approx({name: expected[name] for name in found}, rel=1e-9)
    assert found["nc4"] > 0


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(1, 3), "at least 2.*num_classes=1"),
        (torch.ones(3), r"\(num_classes, feature_dim\).*got \(3,\)"),
        (torch.ones(2, 3, dtype=torch.int64), "floating-point.*int64"),
        (torch.full((2, 3), torch.nan), "weight must be finite; got 6 NaN"),
        (torch.full((2, 3), 1e-200, dtype=torch.float64), "or squares vanish"),
    ],
)
def test_a_weight_that_has_no_nc2_is_refused(weight, message):
    with pytest.raises(ValueError, match=message):
        metrics.nc2(weight)


@pytest.mark.parametrize("metric", [metrics.nc3, metrics.nc4])
def test_a_missing_weight_is_refused(metric):
    with pytest.raises(ValueError, match=r"weight must be .* got none"):
        metric(*case("balanced")[:2], None)
