import pytest
import torch

from guided_collapse.metrics.formulas.rank import exact_gram, hidden_by, numerical_rank, squared_singular_values


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_equal_singular_values_count(rank):
    rows = 5.0 * torch.eye(6, dtype=torch.float64)[:, :rank]
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    values = squared_singular_values(rotation @ rows @ rows.T @ rotation.T)
    assert float(numerical_rank(values)) == pytest.approx(rank, abs=1e-6)


def test_unequal_ones_count_less():
    assert float(numerical_rank(torch.tensor([9.0, 1.0], dtype=torch.float64))) == pytest.approx((3 + 1) ** 2 / 10)


def test_the_lower_triangle_is_not_read():
    gram = torch.tensor([[2.0, 1.0], [torch.nan, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(squared_singular_values(gram), torch.tensor([1.0, 3.0], dtype=torch.float64))


def test_errors_matter_where_many_values_are_below_them():
    values = torch.cat([torch.ones(3), torch.zeros(200)]).double()
    assert hidden_by(torch.tensor(1e-7), values)
    assert not hidden_by(torch.tensor(1e-16), values)
    assert not hidden_by(torch.tensor(1e-7), torch.ones(203).double())


@pytest.mark.parametrize("num_samples", [4, 9, 30])
def test_the_exact_gram_matrix_is_the_smaller_one(num_samples):
    features = torch.randn(40, 9)
    samples = torch.randperm(40)[:num_samples]
    values = squared_singular_values(exact_gram(features, samples, 7))
    assert len(values) == min(num_samples, 9)
    torch.testing.assert_close(values.flip(0).sqrt(), torch.linalg.svdvals(features[samples].double()))
