"""The peak of memory: that of the process, or on a GPU that of torch's tensors."""

import sys
from pathlib import Path

import torch


def start_counting_memory(device: torch.device) -> float:
    """The MB in use; from here on `peak_mb` is the peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 1e6
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _resident_mb("VmRSS")
    except OSError:  # not Linux, or not allowed: the peak so far is what is known
        return peak_mb(device)


def peak_mb(device: torch.device) -> float:
    """The most MB in use since the start; where the operating system has no such start, since the process began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        return _resident_mb("VmHWM")
    except OSError:
        import resource  # here because not every system has it, and the other commands do without

        # In units of 1024 bytes, but for macOS, which counts bytes.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def _resident_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"the operating system does not say {name}")
