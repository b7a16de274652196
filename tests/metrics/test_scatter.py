import pytest
import torch

from guided_collapse.metrics.scatter import add_outer_products, symmetrised


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 33])
def test_half_the_product_makes_the_whole(width):
    rows, more = torch.randn(9, width, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    scatter = torch.zeros(width, width, dtype=torch.float64)
    add_outer_products(scatter, rows)
    add_outer_products(scatter, more)
    torch.testing.assert_close(symmetrised(scatter), rows.T @ rows + more.T @ more)
