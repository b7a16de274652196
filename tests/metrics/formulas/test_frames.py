import math

import pytest
import torch
from torch.nn import functional

from guided_collapse.geometry.nearest import nearest_etf
from guided_collapse.geometry.simplex import simplex_etf
from guided_collapse.metrics.formulas.frames import (
    angle_deviation,
    cross_entropy_lower_bound,
    nearest_frame_distance,
    norm_variation,
    simplex_deviation,
)


def test_closed_form_distance_is_that_of_the_nearest_frame():
    means = torch.randn(5, 9, dtype=torch.float64)
    means -= means.mean(dim=0)
    assert nearest_frame_distance(9 * means @ means.T) == pytest.approx(float(nearest_etf(means).distance), rel=1e-10)


def test_nothing_is_not_a_frame():
    nothing = torch.zeros(4, 6, dtype=torch.float64)
    assert math.isnan(norm_variation(nothing))
    for measured in (angle_deviation, nearest_frame_distance, simplex_deviation):
        assert math.isnan(measured(nothing @ nothing.T))


def test_two_opposite_rows_are_a_frame_and_equal_ones_are_not():
    row = torch.randn(1, 3, dtype=torch.float64)
    opposite, equal = torch.cat([row, -2 * row]), torch.cat([row, row])
    assert angle_deviation(opposite @ opposite.T) == pytest.approx(0, abs=1e-15)
    assert angle_deviation(equal @ equal.T) == pytest.approx(2)
    assert norm_variation(torch.cat([row, -3 * row])) == pytest.approx(math.sqrt(2) / 2)


@pytest.mark.parametrize(("num_classes", "temperature"), [(2, 1.0), (10, 5.0), (100, 0.1), (1000, 20.0)])
def test_the_lower_bound_is_the_loss_of_a_collapsed_model(num_classes, temperature):
    frame = simplex_etf(num_classes, dtype=torch.float64)
    loss = functional.cross_entropy(temperature * frame @ frame.T, torch.arange(num_classes))
    assert cross_entropy_lower_bound(num_classes, temperature) == pytest.approx(loss.item(), rel=1e-12)


def test_no_unit_weights_get_below_the_lower_bound():
    bound = cross_entropy_lower_bound(4, 3.0)
    for _ in range(200):
        weight = functional.normalize(torch.randn(4, 3, dtype=torch.float64), dim=1)
        features = functional.normalize(weight + 0.5 * torch.randn(4, 3, dtype=torch.float64), dim=1)
        assert functional.cross_entropy(3.0 * features @ weight.T, torch.arange(4)).item() > bound


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_lower_bound_needs_a_temperature(temperature):
    with pytest.raises(ValueError, match="temperature must be a positive, finite number; got"):
        cross_entropy_lower_bound(10, temperature)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        cross_entropy_lower_bound(1, 5.0)
