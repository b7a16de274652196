"""Two real processes with uneven shares of the samples measure like one."""

import pytest
import torch

from guided_collapse import measure_collapse
from tests.metrics.cases import case
from tests.processes import results_of_two_processes

pytestmark = pytest.mark.slow

CASES = [("balanced", 0.7), ("imbalanced", 1e-6), ("missing", 0.7)]

WORKER = """
import sys
import torch
import torch.distributed as dist
from guided_collapse import CollapseMetrics
from tests.metrics.cases import case
from tests.metrics.test_processes import CASES, share

rank, rendezvous, results = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
found = {}
for name, noise in CASES:
    for keep in (False, True):
        data = case(name, noise=noise)
        own = share(data.labels, rank)
        metrics = CollapseMetrics(data.features.shape[1], data.num_classes, keep_features=keep)
        for part in own.split(9):
            metrics.update(data.features[part], data.labels[part])
        first = metrics.compute().to_dict()
        if keep:
            second = metrics.measure(data.weight, data.bias)
        else:
            again = metrics.second_pass(data.weight, data.bias)
            for part in own.split(14):
                again.update(data.features[part], data.labels[part])
            if rank == 0:
                again.update(data.features[:5], data.labels[:5], test=True)
            second = again.compute()
        # Synchronization must restore the state of each process.
        assert int(metrics.counts.sum()) == len(own)
        found[f"{name}-{keep}"] = (first, second.to_dict())
torch.save(found, f"{results}/rank-{rank}.pt")
dist.destroy_process_group()
"""


def share(labels, rank):
    """Uneven shares: only the first process has class 0, and only the second has class 2."""
    first = (labels == 0) | ((labels != 2) & (torch.arange(len(labels)) % 3 == 0))
    return (first if rank == 0 else ~first).nonzero().flatten()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return results_of_two_processes(WORKER, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(("name", "noise"), CASES)
def test_two_processes_equal_one(name, noise, keep, rank, two_processes):
    data = case(name, noise=noise)
    options = {} if keep else {"test_features": data.features[:5], "test_labels": data.labels[:5]}
    expected = measure_collapse(*data, **options).to_dict()
    first, second = two_processes[rank][f"{name}-{keep}"]
    assert first["counts"] == second["counts"] == expected["counts"]
    assert first["missing_classes"] == expected["missing_classes"]
    compared = 0
    for results in (first, second):
        for field, value in results.items():
            if isinstance(value, float):
                assert value == pytest.approx(expected[field], rel=1e-9), field
                compared += 1
    assert second["cosine_margins"] == pytest.approx(expected["cosine_margins"], rel=1e-9, abs=1e-12)
    assert compared >= 28
