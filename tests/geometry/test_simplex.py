import pytest
import torch

from guided_collapse.geometry.directions import frame_basis
from guided_collapse.geometry.simplex import center_classes, frame_weight, simplex_etf


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100])
def test_rows_are_unit_sum_to_zero_and_stand_at_equal_angles(num_classes):
    frame = simplex_etf(num_classes, dtype=torch.float64)
    gram = frame @ frame.T
    expected = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(frame.sum(0), torch.zeros(num_classes, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("feature_dim", "num_classes"), [(12, 5), (5, 5), (4, 5), (1, 2)])
def test_weight_of_a_basis_is_the_dense_product(feature_dim, num_classes):
    basis = frame_basis(feature_dim, num_classes, direction="random", dtype=torch.float64)
    weight = frame_weight(basis)
    torch.testing.assert_close(weight, simplex_etf(num_classes, dtype=torch.float64) @ basis.T)
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(num_classes, dtype=torch.float64))


def test_centering_is_the_projector():
    rows = torch.randn(6, 4, dtype=torch.float64)
    projector = torch.eye(6, dtype=torch.float64) - 1 / 6
    torch.testing.assert_close(center_classes(rows), projector @ rows)


@pytest.mark.parametrize("num_classes", [1, 0, -3])
def test_refuses_fewer_than_two_classes(num_classes):
    with pytest.raises(ValueError, match=f"num_classes must be at least 2.*num_classes={num_classes}"):
        simplex_etf(num_classes)
