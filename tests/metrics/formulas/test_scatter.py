import pytest
import torch

from guided_collapse.metrics.formulas.scatter import add_outer_products, nearly_singular, symmetrised


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 33])
def test_half_the_product_makes_the_whole(width):
    rows, more = torch.randn(9, width, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    scatter = torch.zeros(width, width, dtype=torch.float64)
    add_outer_products(scatter, rows)
    add_outer_products(scatter, more)
    torch.testing.assert_close(symmetrised(scatter), rows.T @ rows + more.T @ more)


def test_nearly_singular_whatever_the_units_and_the_dimensions_without_scatter():
    rows = torch.randn(50, 4, dtype=torch.float64) * torch.tensor([1.0, 1e-9, 0.0, 1e9])
    assert not nearly_singular(rows.T @ rows, 1e-4)
    rows[:, 2] = rows[:, 0] + 1e9 * rows[:, 1] + 1e-3 * torch.randn(50)
    assert nearly_singular(rows.T @ rows, 1e-4)
    assert not nearly_singular(rows.T @ rows, 1e-9)
