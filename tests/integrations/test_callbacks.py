"""Callbacks log the results of `collapse_of`, with one process and with two."""

import pytest
import torch

from guided_collapse import StratifiedBatchSampler, collapse_of
from guided_collapse.integrations import LightningCollapse, TransformersCollapse
from guided_collapse.integrations.measurement import RepeatedMeasurement
from tests.integrations.trainers import LABELS, clean_loader, network, with_lightning, with_transformers
from tests.processes import results_of_two_processes

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated", "ignore:.*does not have many workers"),
]

WORKER = """
import os, sys, torch
rank, meeting_point, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "tests"}
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
from tests.integrations.trainers import with_lightning, with_transformers
results = {"transformers": with_transformers(folder), "lightning": with_lightning(processes=2)}
torch.save(results, f"{folder}/rank-{rank}.pt")
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""


def check(state, logged):
    model = network()
    model.load_state_dict(state)
    expected = collapse_of(model, clean_loader()).scalars("collapse/")
    assert set(logged) == set(expected)
    for name, value in expected.items():
        assert logged[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_lightning_logs_what_one_measurement_gives():
    check(*with_lightning())


def test_transformers_logs_what_one_measurement_gives(tmp_path):
    check(*with_transformers(tmp_path))


@pytest.mark.slow
def test_two_processes_log_what_one_measurement_gives(tmp_path):
    first, second = results_of_two_processes(WORKER, tmp_path)
    check(*first["lightning"])
    check(*first["transformers"])
    assert second["transformers"][1] == pytest.approx(first["transformers"][1])


def test_transformers_gives_the_sampler_every_epoch():
    class State:
        epoch = 3.0

    class Loader:
        batch_sampler = StratifiedBatchSampler(LABELS, 60)

    callback = TransformersCollapse(None, clean_loader())
    callback.on_epoch_begin(None, State, None, train_dataloader=Loader)
    assert Loader.batch_sampler.epoch == 3


def test_measurements_that_cannot_be_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="every must be at least 1; got 0"):
        LightningCollapse(clean_loader(), 0)
    with pytest.raises(TypeError, match=r"every must be an integer; got 1\.5"):
        LightningCollapse(clean_loader(), 1.5)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 9)
    with pytest.raises(ValueError, match="got 8 for 9 processes"):
        RepeatedMeasurement(clean_loader(), 1, None, None, "").scalars(network())
