import math

import pytest
import torch
from torch.nn import functional

from guided_collapse.metrics.declaration import best_margin
from guided_collapse.geometry.tight import nearest_frame
from guided_collapse.geometry.nearest import nearest_etf
from guided_collapse.geometry.simplex import center_classes, simplex_etf
from guided_collapse.geometry.tight import tight_frame
from guided_collapse.metrics.formulas import products
from guided_collapse.metrics.formulas.frames import (
    angle_deviation,
    cross_entropy_lower_bound,
    frame_deviation,
    least_margin,
    nearest_frame_distance,
    norm_variation,
    smallest_angle,
)
from tests.metrics import oracle


def test_closed_form_distance_is_that_of_the_nearest_frame():
    means = torch.randn(5, 9, dtype=torch.float64)
    means -= means.mean(dim=0)
    assert nearest_frame_distance(3 * means) == pytest.approx(float(nearest_etf(means).distance), rel=1e-10)
    means = torch.randn(9, 3, dtype=torch.float64)
    means -= means.mean(dim=0)
    nearest = nearest_frame(means, unit_rows=False)
    assert nearest_frame_distance(3 * means) == pytest.approx(float(nearest.distance), rel=1e-10)


def test_any_centered_tight_frame_has_no_deviation_and_is_dual_to_itself_and_to_what_it_inverts():
    for num_classes, feature_dim in ((4, 6), (7, 6), (9, 6), (20, 3), (3, 1)):
        frame = tight_frame(feature_dim, num_classes, direction="random", unit_rows=False, dtype=torch.float64)
        assert frame_deviation(frame) < 1e-14
        assert frame_deviation(frame, 3 * frame) < 1e-14
        # Whatever the means, the rows of their pseudo-inverse are their dual.
        means = center_classes(torch.randn(num_classes, feature_dim, dtype=torch.float64))
        assert frame_deviation(torch.linalg.pinv(means).T, means) < 1e-12
        assert frame_deviation(means) > 1e-2 or num_classes <= 3
        assert frame_deviation(frame, -frame) > 1
        assert frame_deviation(frame + 1) > 1e-2


def test_the_deviation_is_the_least_that_any_tight_frame_has():
    weight, means = torch.randn(2, 9, 3, dtype=torch.float64) + 0.3
    product = functional.normalize((weight @ means.T).flatten(), dim=0).view(9, 9)
    least = frame_deviation(weight, means)
    for direction in center_classes(torch.randn(9, 300 * 3, dtype=torch.float64)).split(3, dim=1):
        columns = torch.linalg.qr(direction).Q
        assert torch.linalg.vector_norm(product - columns @ columns.T / math.sqrt(3)) > least
    # Means that lack rank leave the frame open in the directions that they lack.
    flat = means * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    assert frame_deviation(flat) == pytest.approx(oracle.frame_deviation((flat @ flat.T).numpy(), 3), rel=1e-10)


def test_angles_and_margins_of_well_known_frames():
    orthoplex = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    assert smallest_angle(2 * orthoplex) == pytest.approx(90)
    assert least_margin(3 * orthoplex, orthoplex, torch.arange(6)) == pytest.approx(best_margin(6, 3))
    polygon = tight_frame(2, 7, dtype=torch.float64)
    assert smallest_angle(polygon) == pytest.approx(360 / 7)
    assert least_margin(polygon, polygon, torch.arange(7)) == pytest.approx(best_margin(7, 2))
    assert least_margin(polygon[2:3], polygon, torch.tensor([3])) == pytest.approx(float(polygon[2] @ polygon[3]) - 1)
    near = torch.tensor([[1.0, 0.0], [1.0, 1e-9]], dtype=torch.float64)
    assert smallest_angle(near) == pytest.approx(math.degrees(1e-9), rel=1e-6)


@pytest.mark.parametrize("numbers_at_once", [1, 20, 50])
def test_pairs_are_looked_at_in_parts_where_they_are_many(numbers_at_once, monkeypatch):
    rows, weight = torch.randn(2, 9, 3, dtype=torch.float64)
    classes = torch.randperm(9)
    whole = smallest_angle(rows), least_margin(rows, weight, classes)
    monkeypatch.setattr(products, "NUMBERS_AT_ONCE", numbers_at_once)
    assert (smallest_angle(rows), least_margin(rows, weight, classes)) == pytest.approx(whole, rel=1e-12)
    rows[4] = 0
    assert math.isnan(smallest_angle(rows))
    assert math.isnan(least_margin(rows, weight, classes))


def test_nothing_is_not_a_frame():
    nothing = torch.zeros(4, 6, dtype=torch.float64)
    assert math.isnan(norm_variation(nothing))
    assert math.isnan(angle_deviation(nothing @ nothing.T))
    assert math.isnan(nearest_frame_distance(nothing))
    assert math.isnan(least_margin(nothing, nothing, torch.arange(4)))
    for rows in (nothing, nothing[:, :2]):
        assert math.isnan(frame_deviation(rows))
        assert math.isnan(smallest_angle(rows))


def test_two_opposite_rows_are_a_frame_and_equal_ones_are_not():
    row = torch.randn(1, 3, dtype=torch.float64)
    opposite, equal = torch.cat([row, -2 * row]), torch.cat([row, row])
    assert angle_deviation(opposite @ opposite.T) == pytest.approx(0, abs=1e-15)
    assert angle_deviation(equal @ equal.T) == pytest.approx(2)
    assert norm_variation(torch.cat([row, -3 * row])) == pytest.approx(math.sqrt(2) / 2)


@pytest.mark.parametrize(("num_classes", "scale"), [(2, 1.0), (10, 5.0), (100, 0.1), (1000, 20.0)])
def test_the_lower_bound_is_the_loss_of_a_collapsed_model(num_classes, scale):
    frame = simplex_etf(num_classes, dtype=torch.float64)
    loss = functional.cross_entropy(scale * frame @ frame.T, torch.arange(num_classes))
    assert cross_entropy_lower_bound(num_classes, scale) == pytest.approx(loss.item(), rel=1e-12)


def test_no_unit_weights_get_below_the_lower_bound():
    bound = cross_entropy_lower_bound(4, 3.0)
    for _ in range(200):
        weight = functional.normalize(torch.randn(4, 3, dtype=torch.float64), dim=1)
        features = functional.normalize(weight + 0.5 * torch.randn(4, 3, dtype=torch.float64), dim=1)
        assert functional.cross_entropy(3.0 * features @ weight.T, torch.arange(4)).item() > bound


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_lower_bound_needs_a_temperature(scale):
    with pytest.raises(ValueError, match="scale must be a positive, finite number; got"):
        cross_entropy_lower_bound(10, scale)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        cross_entropy_lower_bound(1, 5.0)
