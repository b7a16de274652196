import pytest
import torch

from guided_collapse.metrics.formulas.precision import product_dtype, safe_in_float32


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
