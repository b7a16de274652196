"""A training step on a device that must not be waited for, has no float64 and no factorizations worth their time."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from benchmarks.counting import FACTORIZATIONS, WAITING, WholeStep
from guided_collapse import CosineHead, FixedETFHead, NearestETFHead
from tests.processes import results_of_two_processes

HEADS = {
    "nearest-etf": NearestETFHead,
    "nearest-etf-detached": lambda *sizes, **options: NearestETFHead(*sizes, implicit_gradient=False, **options),
    "nearest-etf-lagged": lambda *sizes, **options: NearestETFHead(*sizes, lagged=True, **options),
    "nearest-etf-lagged every 3": lambda *sizes, **options: NearestETFHead(*sizes, lagged=True, every=3, **options),
    "fixed-etf": FixedETFHead,
    "cosine": CosineHead,
    "cosine-centered": lambda *sizes, **options: CosineHead(*sizes, center=True, **options),
}
every_head = pytest.mark.parametrize("name", HEADS)


class AsOnAnAccelerator(WholeStep):
    """Refuses what an accelerator lacks, or has to be waited for."""

    def seen(self, name, operation, given, options, result):
        tensors = [value for value in torch.utils._pytree.tree_leaves((given, options, result)) if isinstance(value, torch.Tensor)]
        assert not any(tensor.dtype == torch.float64 for tensor in tensors), f"{name} in float64"
        assert name not in WAITING, f"{name} waits for the device"
        assert not name.startswith(FACTORIZATIONS), f"{name} is a factorization"


def head_for_an_accelerator(name, *sizes):
    options = {"solver": "products"} if name.startswith("nearest-etf") else {}
    return HEADS[name](*sizes, check_values=False, **options)


def steps(head, num_steps=4, device="cpu"):
    labels = torch.arange(30, device=device) % head.num_classes
    for _ in range(num_steps):
        features = torch.randn(30, head.feature_dim, device=device, requires_grad=True)
        functional.cross_entropy(head(features, labels), labels).backward()
        assert features.grad is not None


@every_head
@pytest.mark.parametrize(("feature_dim", "num_classes"), [(24, 6), (6, 6), (5, 6)])
def test_a_step_asks_nothing_that_an_accelerator_lacks(name, feature_dim, num_classes):
    head = head_for_an_accelerator(name, feature_dim, num_classes)
    with AsOnAnAccelerator():
        steps(head)
        head.eval()(torch.randn(3, feature_dim))


def test_the_check_sees_into_our_own_operations():
    with AsOnAnAccelerator(), pytest.raises(AssertionError, match=r"float64|waits"):
        steps(NearestETFHead(24, 6, check_values=False))
    with AsOnAnAccelerator(), pytest.raises(AssertionError, match="waits"):
        steps(FixedETFHead(24, 6))


TWO_PROCESSES = """
import sys
import torch
import torch.distributed as dist
from tests.heads.test_devices import HEADS, AsOnAnAccelerator, head_for_an_accelerator, steps

rank, rendezvous, results = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
torch.manual_seed(rank)
passed = []
for name in HEADS:
    head = head_for_an_accelerator(name, 24, 6)
    with AsOnAnAccelerator():
        steps(head)
    passed.append(name)
torch.save(passed, f"{results}/rank-{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_ask_nothing_that_an_accelerator_lacks(tmp_path):
    assert results_of_two_processes(TWO_PROCESSES, tmp_path) == [list(HEADS), list(HEADS)]


@every_head
def test_a_step_needs_no_values_at_all(name):
    """Tensors on the meta device have shapes alone, and are on no CPU."""
    steps(HEADS[name](24, 6).to("meta"), device="meta")


PRETEND = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from guided_collapse import FixedETFHead, NearestETFHead
from tests.heads.test_devices import HEADS, steps

class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

_setup_privateuseone_for_python_backend("pretend", backend_module=Backend())
for name in ("nearest-etf", "nearest-etf-detached", "nearest-etf-lagged", "nearest-etf-lagged every 3", "fixed-etf"):
    with FakeTensorMode():
        head = HEADS[name](24, 6).to("pretend")
        steps(head, device="pretend")
        assert head.frame.device.type == "pretend"
print("done")
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch cannot pretend to have a device",
)
def test_fake_tensors_on_another_device_trace_a_whole_step():
    done = subprocess.run([sys.executable, "-c", PRETEND], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf", "cosine"])
def test_a_batch_that_nobody_looked_at_leaves_finite_state(name):
    """Without looks at values NaN gives NaN, and the next batch finds the state as it was."""
    head = head_for_an_accelerator(name, 24, 6)
    steps(head)
    before = {key: value.clone() for key, value in head.state_dict().items()}
    labels = torch.arange(30) % 6
    features = torch.randn(30, 24).index_fill(0, torch.tensor([4]), torch.nan)
    assert head(features, labels).isnan().any()
    for key, value in head.state_dict().items():
        if "steps" not in key:
            torch.testing.assert_close(value, before[key], rtol=0, atol=0)


def test_values_are_looked_at_when_asked_for():
    labels, features = torch.arange(30) % 6, torch.full((30, 24), torch.nan)
    for options in ({}, {"check_values": True}):
        with pytest.raises(ValueError, match="features must be finite"):
            NearestETFHead(24, 6, **options)(features, labels)
    assert NearestETFHead(24, 6, check_values=False, solver="products")(features, labels).isnan().all()
