"""Two real processes with half of the batch each train like one process with the whole batch."""

from contextlib import nullcontext

import pytest
import torch

from tests.heads.cases import (
    ALL,
    MANY_CLASSES,
    InputsOnly,
    batches,
    build,
    mixed_batches,
    partly_left_out,
    step_after,
    step_before,
    train,
)
from tests.processes import results_of_two_processes

pytestmark = pytest.mark.slow

NUM_STEPS = 10
WAYS = {"before": ("nearest-etf", step_before), "after": ("nearest-etf-lagged", step_after)}
ONE_SIDED = ("fixed-etf", "nearest-etf", "nearest-etf-lagged")

WORKER = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tests.heads.cases import ALL, InputsOnly, batches, build, mixed_batches, partly_left_out, train
from tests.heads.test_processes import ONE_SIDED, WAYS, accumulated, task

rank, rendezvous, results = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
trained = {}


def halves(steps):
    return [(inputs[rank::2], labels[rank::2]) for inputs, labels in steps]


for name in ALL:
    model, steps, inputs = task(name)
    # DDP does not broadcast buffers here, so each process must arrive at the same state itself.
    train(DistributedDataParallel(model, broadcast_buffers=False), halves(steps))
    trained[name] = {"state": model.state_dict(), "logits": model.eval()(inputs).detach()}
for way, (name, labeled) in WAYS.items():
    model = InputsOnly(name)
    train(DistributedDataParallel(model), halves(batches(10)), take_step=labeled(model.last))
    trained[way] = model.last.state_dict()
    model = InputsOnly(name)
    trained[f"{way}, accumulated"] = accumulated(DistributedDataParallel(model), model, labeled, halves(batches(4)))
for name in ("nearest-etf", "cosine-centered", "tight"):
    model = build(name)
    steps = (*mixed_batches(3, model.head.num_classes), *partly_left_out(2, model.head.num_classes))
    train(DistributedDataParallel(model), halves(steps))
    trained[f"{name}, soft labels"] = {"state": model.state_dict()}
for name in ONE_SIDED:
    model = build(name)
    steps = [(inputs, labels.index_fill(0, torch.arange(0, len(labels), 4), -100)) for inputs, labels in batches(4)]
    train(DistributedDataParallel(model, broadcast_buffers=False), halves(steps))
    trained[f"{name}, one-sided"] = model.state_dict()
torch.save(trained, f"{results}/rank-{rank}.pt")
dist.destroy_process_group()
"""


def task(name):
    """A model, its batches, and inputs for evaluation; in float64 for frames that amplify rounding errors."""
    model = build(name)
    dtype = torch.float64 if name in MANY_CLASSES else torch.float32
    steps = [(inputs.to(dtype), labels) for inputs, labels in batches(NUM_STEPS, num_classes=model.head.num_classes)]
    return model.to(dtype), steps, next(batches(1, seed=7))[0].to(dtype)


def accumulated(called, model, labeled, steps):
    """Gradients and state after gradient accumulation, and the logits of an evaluation in between."""
    take_step = labeled(model.last)
    for inputs, labels in steps[:-1]:
        with called.no_sync() if called is not model else nullcontext():
            take_step(called.train(), inputs, labels)
        logits = model.eval()(next(batches(1, seed=7))[0]).detach()
    take_step(called.train(), *steps[-1])
    return {"logits": logits, "state": model.state_dict(), "gradients": [parameter.grad for parameter in model.parameters()]}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    return results_of_two_processes(WORKER, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", ALL)
def test_two_processes_equal_one(name, two_processes):
    alone, steps, inputs = task(name)
    train(alone, steps)
    logits = alone.eval()(inputs)
    tolerance = 1e-5 if logits.dtype == torch.float32 else 1e-9
    for rank in range(2):
        together = two_processes[rank][name]
        torch.testing.assert_close(together["logits"], logits, rtol=0, atol=tolerance)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(together["state"][key], value, rtol=0, atol=tolerance)
            assert torch.equal(together["state"][key], two_processes[0][name]["state"][key])


@pytest.mark.parametrize("way", WAYS)
def test_labels_outside_the_model_give_the_same_head(way, two_processes):
    for results in two_processes:
        for key, value in results[WAYS[way][0]]["state"].items():
            if key.startswith("head."):
                torch.testing.assert_close(results[way][key.removeprefix("head.")], value)


@pytest.mark.parametrize("way", WAYS)
def test_gradient_accumulation_with_an_evaluation_in_between(way, two_processes):
    name, labeled = WAYS[way]
    alone = InputsOnly(name)
    expected = accumulated(alone, alone, labeled, list(batches(4)))
    for results in two_processes:
        torch.testing.assert_close(results[f"{way}, accumulated"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["nearest-etf", "cosine-centered", "tight"])
def test_soft_and_ignored_labels(name, two_processes):
    alone = build(name)
    num_classes = alone.head.num_classes
    train(alone, (*mixed_batches(3, num_classes), *partly_left_out(2, num_classes)))
    for rank in range(2):
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(two_processes[rank][f"{name}, soft labels"]["state"][key], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ONE_SIDED)
def test_states_stay_equal_if_only_one_process_has_ignored_labels(name, two_processes):
    one, other = (results[f"{name}, one-sided"] for results in two_processes)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key
