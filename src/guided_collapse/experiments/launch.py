"""Starts the processes of a run, describes the hardware that they use, and reports the loss of a process."""

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

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

from guided_collapse.experiments.configuration import Placement, Precision
from guided_collapse.experiments.errors import RequestError, WorkError

PEER_TIMEOUT = timedelta(minutes=30)  # the longest wait for another process, at startup and at every step
MIN_CPU_PROCESSES = 2  # a single-core machine may run this many, to try out distributed training
# Each launcher's environment in Fabric, and the variable with the processes per node. Fabric detects launchers in this order.
LAUNCHERS: Mapping[str, tuple[type[ClusterEnvironment], str]] = {
    "torchrun": (TorchElasticEnvironment, "LOCAL_WORLD_SIZE"),
    "Slurm": (SLURMEnvironment, "SLURM_NTASKS_PER_NODE"),
    "LSF": (LSFEnvironment, ""),
    "MPI": (MPIEnvironment, ""),
}


def check_launch(placement: Placement, precision: Precision) -> None:
    """Raises RequestError if this machine lacks the devices or does not support the precision.

    Also raises it if devices and nodes do not match the launcher.
    """
    has = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": max(os.cpu_count() or 1, MIN_CPU_PROCESSES),
    }
    kind = next(kind for kind, number in has.items() if number) if placement.accelerator == "auto" else placement.accelerator
    if placement.devices > (available := has[kind]):
        raise RequestError(
            f"devices must be at most {available}, the number of {kind} devices of this machine; got {placement.devices}. "
            "Use fewer --devices, or another --accelerator."
        )
    if precision == "16-mixed" and kind == "cpu":
        raise RequestError("precision must be 32-true or bf16-mixed on a CPU, which cannot train in float16; got 16-mixed.")
    for name, (environment, per_node) in LAUNCHERS.items():
        if not environment.detect():
            continue
        started = environment().world_size()
        on_each_node = int(os.environ.get(per_node, placement.devices))
        if (started, on_each_node) != (placement.processes, placement.devices):
            raise RequestError(
                f"devices x nodes must be the number of processes that {name} started, {started}; got {placement.devices} x "
                f"{placement.nodes}. Use --devices {on_each_node} --nodes {started // on_each_node} to share this run, or have "
                f"{name} start {placement.processes}."
            )
        return
    if placement.nodes > 1 and not {"NODE_RANK", "MASTER_ADDR"} <= set(os.environ):
        raise RequestError(
            f"several nodes need a launcher that starts this command on each; got --nodes {placement.nodes} and found none. "
            f"On each node, run: torchrun --nnodes {placement.nodes} --nproc-per-node {placement.devices} --rdzv-backend c10d "
            "--rdzv-endpoint FIRST_NODE:29500 --no-python guided-collapse ...; or use srun, or leave --nodes out."
        )


def build_fabric(placement: Placement, precision: Precision) -> Fabric:
    """Returns the Fabric object for the devices and processes of a run, not launched yet."""
    return Fabric(
        accelerator=placement.accelerator,
        devices=placement.devices,
        num_nodes=placement.nodes,
        strategy=DDPStrategy(timeout=PEER_TIMEOUT) if placement.processes > 1 else "auto",
        precision=precision,
    )


@contextmanager
def lost_peers_reported(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Raises WorkError if another process of the run has exited or hangs, and kills the processes that this one started."""
    try:
        yield
    except RuntimeError as error:
        # Gloo has no error type of its own, but its messages contain its name.
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        launcher = fabric.strategy.launcher
        for process in launcher.procs if isinstance(launcher, _SubprocessScriptLauncher) else ():
            process.kill()
        raise WorkError(
            f"another process of the run in {folder} has exited, or timed out after {PEER_TIMEOUT.total_seconds() / 60:g} minutes; "
            f"its own message, if any, is above. To continue from the last checkpoint, run: guided-collapse resume {folder}"
        ) from error


def versions() -> dict[str, str]:
    """Returns versions of Python and of the packages that affect results."""
    return {
        "guided_collapse": metadata.version("guided-collapse"),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "lightning_fabric", "torchmetrics")},
    }


def commit() -> str | None:
    """Returns the commit of this package's checkout, with a plus if files have changed since; None for an installed package."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(here.parents[1])) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def hardware(device: torch.device, processes: int) -> dict[str, Any]:
    """Returns CPU model and cores, threads per process, device model or type, and number of processes."""
    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.is_file():
        lines = information.read_text(errors="replace").splitlines()
        processor = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), processor)
    return {
        "cpu": processor,
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "devices": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": processes,
    }


@contextmanager
def threads_as_before(begun: Mapping[str, Any]) -> Iterator[None]:
    """Uses as many threads as the run began with, so that rounding is the same, unless OMP_NUM_THREADS is set."""
    before = torch.get_num_threads()
    if begun and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(begun["threads"], os.cpu_count() or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_devices(now: Mapping[str, Any], begun: Mapping[str, Any]) -> str:
    """Returns the devices as text, with any changes since the run began, because other hardware may round differently."""
    devices = now["devices"] if now["processes"] == 1 else f"{now['processes']} x {now['devices']}"
    changed = [name for name in begun if name != "cores" and now[name] != begun[name]]  # more cores do not change rounding
    changes = ", ".join(f"{name} {now[name]} instead of {begun[name]}" for name in changed)
    return f"{devices}, so results are the same only up to rounding: {changes}" if changes else devices
