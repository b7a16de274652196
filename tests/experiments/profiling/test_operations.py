"""What the counting of operations sees."""

import pytest
import torch

from guided_collapse import nearest_etf
from guided_collapse.experiments.profiling.operations import CountOperations


def counts_of(compute):
    with CountOperations() as counting:
        compute()
    return counting.counts


@pytest.mark.parametrize("name", ["eigh", "svd", "qr", "cholesky", "inv", "eigvalsh", "svdvals", "det", "eig"])
def test_factorizations(name):
    matrix = torch.eye(4) + 0.1
    assert counts_of(lambda: getattr(torch.linalg, name)(matrix)).factorizations == 1


def test_both_solvers():
    means = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    means -= means.mean(dim=0)
    by_factors = counts_of(lambda: nearest_etf(means, solver="factors"))
    by_products = counts_of(lambda: nearest_etf(means, solver="products"))
    assert min(by_factors.factorizations, by_factors.waits, by_factors.double_precision) > 0
    assert (by_products.factorizations, by_products.waits, by_products.double_precision) == (0, 0, 0)
    assert by_products.work > by_factors.work


def test_waits_and_bytes():
    vector = torch.ones(8)
    assert counts_of(lambda: float(vector[0])).waits == 1
    assert counts_of(lambda: vector + vector).moved_bytes == 3 * 32
    assert counts_of(lambda: vector[2:]).operations == 0
