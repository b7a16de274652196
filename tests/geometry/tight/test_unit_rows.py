import pytest
import torch

from guided_collapse.geometry.frames import tightness_defect
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.geometry.tight.unit_rows import can_be_centered, spare_norms, with_unit_rows


@pytest.mark.parametrize(
    ("num_classes", "feature_dim", "expected"), [(3, 1, False), (4, 2, False), (5, 3, False), (5, 2, True), (9, 6, True)]
)
def test_sizes_that_stay_centered(num_classes, feature_dim, expected):
    assert can_be_centered(num_classes, feature_dim) is expected
    matrix = center_classes(torch.randn(num_classes, feature_dim, dtype=torch.float64))
    columns = torch.linalg.qr(matrix).Q
    weight = with_unit_rows(columns, matrix, columns, rounds=200, solver="factors")
    assert float(tightness_defect(weight)) < 1e-6
    assert (float(weight.mean(0).norm()) < 1e-6) is expected


def test_both_sides_lead_to_unit_rows_at_once():
    # Twice as many classes as dimensions: a little more or less decides the side, and neither takes long.
    for num_classes in (31, 32, 33):
        columns = torch.linalg.qr(center_classes(torch.randn(num_classes, 16, dtype=torch.float64))).Q
        assert float(tightness_defect(with_unit_rows(columns, columns, columns, rounds=20, solver="factors"))) < 1e-4


def test_few_more_classes_than_dimensions_do_not_take_more_rounds():
    columns = torch.linalg.qr(center_classes(torch.randn(60, 56, dtype=torch.float64))).Q
    assert float(tightness_defect(with_unit_rows(columns, columns, columns, rounds=5, solver="factors"))) < 1e-3


def test_rows_that_leave_nothing_over_count_as_if_they_left_a_little():
    # Rounding takes their norm above 1.
    columns = (1 + 1e-7) * torch.eye(6, 4)
    norms = spare_norms(columns, centered=False)
    usual = (2 / 6) ** 0.5
    torch.testing.assert_close(norms[:4], torch.full((4, 1), 0.1 * usual))
    torch.testing.assert_close(norms[4:], torch.ones(2, 1))
