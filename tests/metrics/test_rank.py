import pytest
import torch

from guided_collapse.metrics.rank import numerical_rank


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_equal_singular_values_count(rank):
    rows = 5.0 * torch.eye(6, dtype=torch.float64)[:, :rank]
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    assert float(numerical_rank(rotation @ rows @ rows.T @ rotation.T)) == pytest.approx(rank, abs=1e-6)


def test_unequal_ones_count_less():
    assert float(numerical_rank(torch.tensor([9.0, 1.0], dtype=torch.float64).diag())) == pytest.approx((3 + 1) ** 2 / 10)
