import pytest
import scipy.linalg
import torch

from guided_collapse.geometry.tight.roots import inverse_square_root


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.5, 3.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 5e-4)])
def test_against_scipy(spread, dtype, tolerance):
    rotation = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64)).Q
    gram = rotation * torch.logspace(0, -spread, 30, dtype=torch.float64) @ rotation.T * 7
    expected = torch.from_numpy(scipy.linalg.inv(scipy.linalg.sqrtm(gram.numpy())).real)
    found = inverse_square_root(gram.to(dtype)).double()
    assert (found - expected).norm() < tolerance * expected.norm()


def test_a_matrix_without_full_rank_gives_finite_numbers():
    row = torch.randn(1, 6, dtype=torch.float64)
    assert torch.isfinite(inverse_square_root(row.T @ row)).all()
