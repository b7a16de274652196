"""A training step on an accelerator: no synchronization, no float64, no factorization."""

import copy

import pytest
import torch
from torch.nn import functional

from benchmarks.counting import FACTORIZATIONS, WAITING, WholeStep
from guided_collapse import FixedETFHead, NearestETFHead
from tests.heads.cases import HEADS, as_on_an_accelerator, assert_same_state, build
from tests.processes import results_of_two_processes

NAMES = [*HEADS, "nearest-etf-lagged every 3"]
every_head = pytest.mark.parametrize("name", NAMES)


class AsOnAnAccelerator(WholeStep):
    """Raises for operations that accelerators lack or that synchronize with the device."""

    def seen(self, name, operation, given, options, result):
        tensors = [value for value in torch.utils._pytree.tree_leaves((given, options, result)) if isinstance(value, torch.Tensor)]
        assert not any(tensor.dtype == torch.float64 for tensor in tensors), f"{name} in float64"
        assert name not in WAITING, f"{name} waits for the device"
        assert not name.startswith(FACTORIZATIONS), f"{name} is a factorization"


def head_of(name, feature_dim=24, num_classes=6):
    name, _, every = name.partition(" every ")
    head = build(name, feature_dim=feature_dim, num_classes=num_classes).head
    if every:
        head.every = int(every)
    return head


def steps(head, num_steps=4, device="cpu"):
    labels = torch.arange(30, device=device) % head.num_classes
    for _ in range(num_steps):
        features = torch.randn(30, head.feature_dim, device=device, requires_grad=True)
        functional.cross_entropy(head(features, labels), labels).backward()
        assert features.grad is not None


@every_head
@pytest.mark.parametrize("sizes", [(24, 6), (6, 6), (5, 6)])
def test_a_step_needs_no_operation_that_accelerators_lack(name, sizes):
    head = as_on_an_accelerator(head_of(name, *sizes))
    with AsOnAnAccelerator():
        steps(head)
        head.eval()(torch.randn(3, sizes[0]))


def test_the_check_sees_inside_custom_operations():
    with AsOnAnAccelerator(), pytest.raises(AssertionError, match=r"float64|waits"):
        steps(NearestETFHead(24, 6, check_values=False))
    with AsOnAnAccelerator(), pytest.raises(AssertionError, match="waits"):
        steps(FixedETFHead(24, 6))


TWO_PROCESSES = """
import sys
import torch
import torch.distributed as dist
from tests.heads.cases import as_on_an_accelerator
from tests.heads.test_devices import NAMES, AsOnAnAccelerator, head_of, steps

rank, rendezvous, results = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
for name in NAMES:
    head = as_on_an_accelerator(head_of(name))
    with AsOnAnAccelerator():
        steps(head)
torch.save("done", f"{results}/rank-{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_need_no_operation_that_accelerators_lack(tmp_path):
    assert results_of_two_processes(TWO_PROCESSES, tmp_path) == ["done", "done"]


@every_head
def test_a_step_runs_on_the_meta_device(name):
    """Meta tensors have shapes but no values, so nothing can read one."""
    steps(head_of(name).to("meta"), device="meta")


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf", "cosine-centered"])
def test_without_checks_nan_gives_nan_and_does_not_change_the_state(name):
    head = as_on_an_accelerator(head_of(name))
    steps(head)
    before = copy.deepcopy(head)
    features = torch.randn(30, 24).index_fill(0, torch.tensor([4]), torch.nan)
    assert head(features, torch.arange(30) % 6).isnan().any()
    assert_same_state(head, before)


def test_values_are_checked_on_request():
    labels, features = torch.arange(30) % 6, torch.full((30, 24), torch.nan)
    for options in ({}, {"check_values": True}):
        with pytest.raises(ValueError, match="features must be finite"):
            NearestETFHead(24, 6, **options)(features, labels)
