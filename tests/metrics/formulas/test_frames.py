import math

import pytest
import torch

from guided_collapse.geometry.nearest import nearest_etf
from guided_collapse.metrics.formulas.frames import angle_deviation, nearest_frame_distance, norm_variation, simplex_deviation


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
