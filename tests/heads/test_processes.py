"""Two real processes with half the batch each train as one process with the whole batch."""

import pytest
import torch

from tests.heads.cases import ALL, batches, build, train
from tests.processes import results_of_two_processes

pytestmark = pytest.mark.slow

NUM_STEPS = 10

WORKER = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.heads.cases import ALL, batches, build, train

rank, rendezvous, results = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
trained = {}
for name in ALL:
    model = build(name)
    halves = [(inputs[rank::2], labels[rank::2]) for inputs, labels in batches(10, num_classes=model.head.num_classes)]
    train(DistributedDataParallel(model), halves)
    inputs, _ = next(batches(1, seed=7))
    trained[name] = {"state": model.state_dict(), "logits": model.eval()(inputs).detach()}
torch.save(trained, f"{results}/rank-{rank}.pt")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return results_of_two_processes(WORKER, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", ALL)
def test_two_processes_equal_one(name, two_processes):
    alone = build(name)
    train(alone, batches(NUM_STEPS, num_classes=alone.head.num_classes))
    inputs, _ = next(batches(1, seed=7))
    logits = alone.eval()(inputs)
    # The gradient through many normalised rows has fewer digits.
    tolerance = 1e-4 if name == "tight-not-lagged" else 1e-5
    for rank in range(2):
        together = two_processes[rank][name]
        torch.testing.assert_close(together["logits"], logits, rtol=0, atol=tolerance)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(together["state"][key], value, rtol=0, atol=tolerance)
