"""How the processes of a run are started, and what is said when they cannot be, or when one is lost."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning_fabric.plugins.environments.lsf import LSFEnvironment
from lightning_fabric.plugins.environments.mpi import MPIEnvironment
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from guided_collapse.experiments.errors import RequestError, WorkError
from guided_collapse.experiments.configuration import Precision
from guided_collapse.experiments.configuration import Accelerator, Placement

PATIENCE = timedelta(minutes=30)
"""How long a process waits for another, at the start and at every step, before it gives up."""

FEWEST_CORES = 2  # as many processes as that may share one core: to try out what several do


class Launcher(NamedTuple):
    """What starts processes from outside: how Fabric knows it, and the variable with the number of processes on this node."""

    environment: type[ClusterEnvironment]
    per_node: str | None


# In the order in which Fabric looks for them.
LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": Launcher(TorchElasticEnvironment, "LOCAL_WORLD_SIZE"),
    "Slurm": Launcher(SLURMEnvironment, "SLURM_NTASKS_PER_NODE"),
    "LSF": Launcher(LSFEnvironment, None),
    "MPI": Launcher(MPIEnvironment, None),
}


def check_launch(placement: Placement, precision: Precision) -> None:
    """Refuses devices, nodes and a precision that this machine does not have, or that its launcher has not started processes for.

    Raises:
        RequestError: with what to ask for.
    """
    check_device(placement.accelerator, precision, count=placement.devices)
    launcher = next((name for name, kind in LAUNCHERS.items() if kind.environment.detect()), None)
    if launcher is not None:
        _check_started(launcher, placement)
    elif placement.nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= set(os.environ):
        raise RequestError(
            f"several nodes need a launcher that starts this command on each; got --nodes {placement.nodes} and found none. "
            f"On each node, run: torchrun --nnodes {placement.nodes} --nproc-per-node {placement.devices} --rdzv-backend c10d "
            "--rdzv-endpoint FIRST_NODE:29500 --no-python guided-collapse ...; or use srun, or leave --nodes out."
        )


def check_device(accelerator: Accelerator, precision: Precision, *, count: int = 1) -> None:
    """Refuses devices that this machine does not have, and a precision that they do not compute in.

    Raises:
        RequestError: with what to ask for.
    """
    kind = _kind(accelerator)
    available = _devices(kind)
    if count > available:
        cores = ", which are its cores" if kind == "cpu" else ""
        raise RequestError(
            f"devices must be at most the {available} of kind {kind} that this machine has{cores}; got {count}. "
            "Give fewer --devices, or another --accelerator."
        )
    if precision == "16-mixed" and kind == "cpu":
        raise RequestError("precision must be 32-true or bf16-mixed on a CPU, which has no training in float16; got 16-mixed.")


def _kind(accelerator: Accelerator) -> Accelerator:
    """The kind of device that Fabric takes."""
    if accelerator != "auto":
        return accelerator
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _devices(kind: Accelerator) -> int:
    """How many this machine has; on a CPU, cores."""
    if kind == "cuda":
        return torch.cuda.device_count()
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return max(os.cpu_count() or 1, FEWEST_CORES)


def _check_started(name: str, placement: Placement) -> None:
    """Compares the processes that the launcher has started with those that are asked for."""
    launcher = LAUNCHERS[name]
    try:
        started = launcher.environment().world_size()
    except RuntimeError as error:  # what Fabric does not take from Slurm
        raise RequestError(f"{name} has started processes in a way that cannot be used: {error}") from error
    on_each_node = int(os.environ.get(launcher.per_node or "", placement.devices))
    if (started, on_each_node) == (placement.processes, placement.devices):
        return
    flags = f"--devices {on_each_node} --nodes {started // on_each_node}" if launcher.per_node in os.environ else ""
    raise RequestError(
        f"devices x nodes must be the number of processes that {name} has started, {started}; got {placement.devices} x "
        f"{placement.nodes}. Give {flags or '--devices and --nodes'} to share this run, or have {name} start {placement.processes}."
    )


def build_fabric(placement: Placement, precision: Precision) -> Fabric:
    """Devices and processes of a run, yet to be launched."""
    return Fabric(
        accelerator=placement.accelerator,
        devices=placement.devices,
        num_nodes=placement.nodes,
        strategy=DDPStrategy(timeout=PATIENCE) if placement.processes > 1 else "auto",
        precision=precision,
    )


@contextmanager
def peers_named(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Says what to do when another process of the run in this folder is lost, instead of what the network says of it.

    Processes that this one has started end with it: one that only stands still would stay for ever.

    Raises:
        WorkError: if one has ended, or has not answered for as long as `PATIENCE`.
    """
    try:
        yield
    except RuntimeError as error:
        if not _is_about_peers(error):
            raise
        launcher = fabric.strategy.launcher
        for process in launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else ():
            process.kill()
        minutes = PATIENCE.total_seconds() / 60
        raise WorkError(
            f"another process of the run in {folder} has ended, or has not answered for {minutes:g} minutes; what it said, if "
            f"anything, is above. The run goes on from its last checkpoint with: guided-collapse resume {folder}"
        ) from error


def _is_about_peers(error: RuntimeError) -> bool:
    """Whether it comes from between processes; gloo has no type of its own for that, but names itself."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
