"""The benchmark of solves: what it measures is what the tables read."""

import importlib.util
from pathlib import Path

import pytest

from guided_collapse.experiments.profiling.operations import OperationCounts
from results import tables

FILE = Path(__file__).parent.parent / "benchmarks" / "solve.py"


@pytest.fixture(scope="module")
def solve():
    spec = importlib.util.spec_from_file_location("solve", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_but_the_papers_is_counted(solve):
    assert set(solve.METHODS) <= set(tables.METHODS)
    found = {method: solve.measure(method, 24, 4) for method in solve.METHODS if method != solve.PAPER_ROUTE}
    counts = {method: OperationCounts(**result["counts"]) for method, result in found.items()}
    assert all(result["forward and backward"] > 0 for result in found.values())
    assert counts["products"].waits == counts["products"].factorizations == counts["products"].double_precision == 0
    assert counts["factors"].factorizations == counts["autograd through svd"].factorizations == 1
    line = solve.counts_text(found["factors"]["counts"]).split()
    assert line[:2] == [str(counts["factors"].operations), str(counts["factors"].waits)]


@pytest.mark.parametrize("methods", [("ours",), ("factors", "products")])
def test_records_of_one_solver_and_of_two_are_tables(methods):
    rows = [
        {"method": method, "feature_dim": 8, "num_classes": 3, "forward": 0.1, "forward and backward": 0.25, "megabytes": 4.0}
        for method in (*methods, "autograd through svd", "the paper's route")
    ]
    heading, _, row = tables.solves(rows)
    assert heading.count("this library") == len(methods)
    assert row.count("250 ms, 4 MB") == len(methods) + 2
