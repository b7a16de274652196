"""What a run ran on."""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch

from guided_collapse.experiments.records.schema import Hardware

PACKAGES = ("torch", "numpy", "lightning-fabric", "torchmetrics")


def versions() -> dict[str, str]:
    """Versions of what computes."""
    return {
        "guided_collapse": metadata.version("guided-collapse"),
        "python": platform.python_version(),
        **{name.replace("-", "_"): metadata.version(name) for name in PACKAGES},
    }


def commit() -> str | None:
    """The commit of this package's checkout, with a plus if files have been changed since; None for an installed package."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", str(Path(__file__))) is None:
        return None
    revision = git("rev-parse", "HEAD")
    return None if revision is None else revision + ("+" if git("status", "--porcelain", "--", str(folder.parent)) else "")


def device_name(device: torch.device) -> str:
    """The model of a GPU, or the kind of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def hardware(device: torch.device, processes: int) -> Hardware:
    """The processor, its cores, and the devices used."""
    return Hardware(
        cpu=_processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        devices=device_name(device),
        processes=processes,
    )


@contextmanager
def as_many_threads_as(begun: Hardware | None) -> Iterator[None]:
    """Computes with as many threads as that hardware had, if this one has the cores, unless OMP_NUM_THREADS says how many.

    Sums are then rounded as they were.
    """
    before = torch.get_num_threads()
    if begun is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(begun.threads, os.cpu_count() or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def devices_in_words(device: torch.device, processes: int, begun: Hardware | None) -> str:
    """The devices, and what of the hardware is another than where the run began, which may round otherwise.

    Args:
        device: of this process.
        processes: how many there are.
        begun: the hardware where the run began; None if it is not known.
    """
    name = device_name(device)
    devices = name if processes == 1 else f"{processes} x {name}"
    if begun is None:
        return devices
    # More cores do not change how sums are rounded.
    before = replace(begun, cores=None).to_json()
    now = replace(hardware(device, processes), cores=None).to_json()
    changes = ", ".join(f"{name} {now[name]} instead of {before[name]}" for name in now if now[name] != before[name])
    return f"{devices}, equal up to rounding only: {changes}" if changes else devices


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
