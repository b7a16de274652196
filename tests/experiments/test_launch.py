"""Processes that cannot be started, and processes that are lost."""

import subprocess
import sys

import pytest
import torch.distributed

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.configuration import Placement
from guided_collapse.experiments.launch import PEER_TIMEOUT, build_fabric, check_launch, lost_peers_reported
from tests.processes import results_of_two_processes

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
SLURM = {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "training"}


def on_cpu(**changes):
    return Placement(accelerator="cpu", **changes)


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    monkeypatch.setattr("guided_collapse.experiments.launch.os.cpu_count", lambda: 2)


def test_several_nodes_without_a_launcher_are_refused_instead_of_waited_for(monkeypatch):
    with pytest.raises(
        ValueError, match=r"need a launcher .* got --nodes 2 and found none.*torchrun --nnodes 2 --nproc-per-node 1"
    ):
        check_launch(on_cpu(nodes=2), "32-true")
    monkeypatch.setenv("NODE_RANK", "1")  # Fabric's own way to start every node by hand
    monkeypatch.setenv("MASTER_ADDR", "first-node")
    check_launch(on_cpu(nodes=2), "32-true")


@pytest.mark.parametrize(("launcher", "variables"), [("torchrun", TORCHRUN), ("Slurm", SLURM)])
def test_a_launcher_must_have_started_the_processes_that_are_asked_for(launcher, variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check_launch(on_cpu(devices=2, nodes=2), "32-true")
    for changes in ({}, {"devices": 2}, {"nodes": 4}):
        with pytest.raises(ValueError, match=f"{launcher} started, 4; got .*Use --devices 2 --nodes 2"):
            check_launch(on_cpu(**changes), "32-true")


def test_a_wrong_launch_is_a_wrong_request(monkeypatch, capsys, tmp_path):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    for command in ("train", "compare"):
        assert main([command, "digits", "--accelerator", "cpu", "--out", str(tmp_path / "runs")]) == 2
        assert "torchrun started, 4; got 1 x 1" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_devices_and_precisions_that_this_machine_lacks_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    check_launch(on_cpu(devices=2), "bf16-mixed")
    with pytest.raises(ValueError, match="at most 2, the number of cpu devices of this machine; got 60"):
        check_launch(on_cpu(devices=60), "32-true")
    with pytest.raises(ValueError, match="at most 0, the number of cuda devices of this machine; got 1"):
        check_launch(Placement(accelerator="cuda"), "32-true")
    with pytest.raises(ValueError, match=r"32-true or bf16-mixed on a CPU.*got 16-mixed"):
        check_launch(on_cpu(), "16-mixed")


def test_a_lost_process_is_named_with_what_to_do_and_leaves_none_behind(tmp_path):
    fabric = build_fabric(on_cpu(devices=2), "32-true")
    assert fabric.strategy._timeout == PEER_TIMEOUT
    peer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    fabric.strategy.launcher.procs.append(peer)
    with pytest.raises(RuntimeError, match=f"guided-collapse resume {tmp_path}$") as said, lost_peers_reported(fabric, tmp_path):
        raise torch.distributed.DistError("Connection closed by peer")
    assert "timed out after 30 minutes" in str(said.value)
    assert peer.wait(timeout=60) != 0


# Rank 1 stands still for longer than a group is patient, and then ends without a word.
WORKER = """
import sys, time
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
rank, place, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
patient, impatient = dist.new_group([0, 1]), dist.new_group([0, 1], timeout=timedelta(seconds=1))
said = []
for group in (impatient, patient) if rank == 0 else ():
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        said.append(str(error))
    (folder / "given-up").touch()
while not (folder / "given-up").exists():
    time.sleep(0.05)
torch.save(said, folder / f"rank-{rank}.pt")
"""


@pytest.mark.thorough
def test_a_process_that_stands_still_or_ends_is_given_up(tmp_path):
    said, _ = results_of_two_processes(WORKER, tmp_path)
    assert len(said) == 2
    fabric = build_fabric(on_cpu(), "32-true")
    for words in said:
        with pytest.raises(RuntimeError, match=f"guided-collapse resume {tmp_path}$"), lost_peers_reported(fabric, tmp_path):
            raise RuntimeError(words)
