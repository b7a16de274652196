"""What a step of a head asks of a device: what is counted for an accelerator is what a head does that waits for nothing."""

from dataclasses import asdict

import pytest
import torch

from guided_collapse import CosineHead, FixedETFHead, NearestETFHead
from guided_collapse.experiments.profiling.head_counts import head_counts, step_counts
from guided_collapse.experiments.profiling.operations import CountOperations
from guided_collapse.experiments.records.schema import HeadCounts

CPU = torch.device("cpu")


def heads(**options):
    """Those that are left to choose, and the same told to do as on an accelerator."""
    solved = {"solver": "products"} if options else {}
    return {
        "cosine": CosineHead(24, 6, **options),
        "fixed-etf": FixedETFHead(24, 6, **options),
        "nearest-etf": NearestETFHead(24, 6, **options, **solved),
        "nearest-etf-lagged": NearestETFHead(24, 6, lagged=True, **options, **solved),
    }


def counted(counts):
    return {name: getattr(counts, name) for name in HeadCounts.COUNTED}


@pytest.mark.parametrize("name", heads())
def test_an_accelerator_is_never_waited_for(name):
    on_cpu, elsewhere = head_counts(name, heads()[name], 30)
    assert (on_cpu.device_kind, elsewhere.device_kind) == ("cpu", "accelerator")
    assert on_cpu.waits > 0
    assert (elsewhere.waits, elsewhere.double_precision, elsewhere.factorizations) == (0, 0, 0)
    assert counted(elsewhere) == asdict(step_counts(heads(check_values=False)[name], 30, CPU))
    assert counted(on_cpu) == asdict(step_counts(heads()[name], 30, CPU))


def test_solvers_are_named():
    solvers = {name: [counts.solver for counts in head_counts(name, head, 30)] for name, head in heads().items()}
    assert solvers["fixed-etf"] == solvers["cosine"] == [None, None]
    assert solvers["nearest-etf"] == solvers["nearest-etf-lagged"] == ["factors", "products"]
    head = NearestETFHead(24, 6, solver="products")
    assert [counts.solver for counts in head_counts("nearest-etf", head, 30)] == ["products", "products"]


def test_the_first_step_is_not_what_is_counted():
    labels, features = torch.arange(30) % 6, torch.randn(30, 24, requires_grad=True)
    with CountOperations() as first:
        torch.nn.functional.cross_entropy(NearestETFHead(24, 6)(features, labels), labels).backward()
    assert step_counts(NearestETFHead(24, 6), 30, CPU).factorizations < first.counts.factorizations


def test_work_is_that_of_the_products():
    # The logits, and the gradients of features and of weights.
    assert step_counts(CosineHead(24, 6), 30, CPU).work == 3 * 2 * 30 * 24 * 6


def test_the_head_is_left_as_it_was():
    head = NearestETFHead(24, 6)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    head_counts("nearest-etf", head, 30)
    for name, value in head.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
