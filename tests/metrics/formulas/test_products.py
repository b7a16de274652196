import pytest
import torch

from guided_collapse.metrics.formulas.products import (
    add_outer_products,
    nearly_singular,
    product_dtype,
    safe_in_float32,
    symmetrized,
)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_products_are_in_float32_at_least(dtype, expected):
    assert product_dtype(dtype) == expected


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_not_in_float32_where_that_means_less(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert product_dtype(torch.float32) == torch.float64
    finally:
        torch.set_float32_matmul_precision(before)


def test_nor_where_torch_does_not_tell(monkeypatch):
    def refuse():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert product_dtype(torch.float32) == torch.float64


@pytest.mark.parametrize(
    ("scale", "safe"), [(1.0, True), (1e-10, True), (1e-20, False), (1e25, False), (0.0, False), (torch.inf, False)]
)
def test_safe_values(scale, safe):
    assert safe_in_float32(torch.full((3, 4), scale)) == safe


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 33])
def test_half_the_product_makes_the_whole(width):
    rows, more = torch.randn(9, width, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    scatter = torch.zeros(width, width, dtype=torch.float64)
    add_outer_products(scatter, rows)
    add_outer_products(scatter, more)
    torch.testing.assert_close(symmetrized(scatter), rows.T @ rows + more.T @ more)


def test_nearly_singular_whatever_the_units_and_the_dimensions_without_scatter():
    rows = torch.randn(50, 4, dtype=torch.float64) * torch.tensor([1.0, 1e-9, 0.0, 1e9])
    assert not nearly_singular(rows.T @ rows, 1e-4)
    rows[:, 2] = rows[:, 0] + 1e9 * rows[:, 1] + 1e-3 * torch.randn(50)
    assert nearly_singular(rows.T @ rows, 1e-4)
    assert not nearly_singular(rows.T @ rows, 1e-9)
