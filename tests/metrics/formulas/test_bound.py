"""The lower bound of the cross-entropy is reached at collapse and nowhere passed."""

import math

import pytest
import torch
from torch.nn import functional

from guided_collapse.geometry.simplex import simplex_etf
from guided_collapse.metrics.formulas.bound import cross_entropy_lower_bound


@pytest.mark.parametrize(("num_classes", "temperature"), [(2, 1.0), (10, 5.0), (100, 0.1), (1000, 20.0)])
def test_it_is_the_loss_of_a_collapsed_model(num_classes, temperature):
    frame = simplex_etf(num_classes, dtype=torch.float64)
    loss = functional.cross_entropy(temperature * frame @ frame.T, torch.arange(num_classes))
    assert cross_entropy_lower_bound(num_classes, temperature) == pytest.approx(loss.item(), rel=1e-12)


def test_no_unit_weights_get_below_it():
    bound = cross_entropy_lower_bound(4, 3.0)
    for _ in range(200):
        weight = functional.normalize(torch.randn(4, 3, dtype=torch.float64), dim=1)
        features = functional.normalize(weight + 0.5 * torch.randn(4, 3, dtype=torch.float64), dim=1)
        assert functional.cross_entropy(3.0 * features @ weight.T, torch.arange(4)).item() > bound


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_refusals(temperature):
    with pytest.raises(ValueError, match="temperature must be a positive, finite number; got"):
        cross_entropy_lower_bound(10, temperature)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        cross_entropy_lower_bound(1, 5.0)
