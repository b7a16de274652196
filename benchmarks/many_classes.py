"""Time and memory of training steps of the nearest-frame head with many classes, relative to `nn.Linear`, in one run.

    python -m benchmarks.many_classes --record many-classes.json

Both classifiers follow a small layer of the same size and train by SGD with momentum, in alternating steps on the same batches.
Times are medians over windows of `every` steps, in each of which the frame moves once.

Peak memory is measured in separate processes, in units of C d floats, from the level before the model was created. "logits alone"
has a constant weight: subtract its peak, which is that of the weight and the logits, to see what a classifier adds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.counting import peak_mb, start_counting_memory
from guided_collapse import NearestETFHead
from guided_collapse.experiments.launch import commit, hardware, versions

INPUT_DIM = 64
CPU = torch.device("cpu")


class Logits(nn.Module):
    """A classifier with a constant weight."""

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(num_classes, feature_dim))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return features @ self.weight.T


class Linear(nn.Linear):
    """nn.Linear, called like a head."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return super().forward(features)


KINDS = {"logits alone": Logits, "nn.Linear": Linear, "nearest": NearestETFHead}


class Training:
    """A small layer, a classifier and their optimizer, to be trained step by step."""

    def __init__(self, kind: str, feature_dim: int, num_classes: int) -> None:
        self.backbone = nn.Linear(INPUT_DIM, feature_dim)
        self.head = KINDS[kind](feature_dim, num_classes)
        parameters = [*self.backbone.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def seconds_of_a_step(self, inputs: Tensor, labels: Tensor) -> float:
        start = time.perf_counter()
        self.optimizer.zero_grad()
        functional.cross_entropy(self.head(self.backbone(inputs), labels), labels).backward()
        self.optimizer.step()
        return time.perf_counter() - start


def batch(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    return torch.randn(options.batch_size, INPUT_DIM), torch.randint(0, options.num_classes, (options.batch_size,))


def compare_times(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of every window of both classifiers, in the order of measurement, and the ratio of their medians."""
    linear, nearest = (Training(kind, options.feature_dim, options.num_classes) for kind in ("nn.Linear", "nearest"))
    every = nearest.head.every
    # The frame moves at the first step, and then at the last step of every window.
    for training in (linear, nearest):
        training.seconds_of_a_step(*batch(options))
    windows: dict[str, list[float]] = {"nn.Linear": [], "nearest": []}
    for _ in range(options.windows):
        before, totals = nearest.head.weight.clone(), {"nn.Linear": 0.0, "nearest": 0.0}
        for _ in range(every):
            given = batch(options)
            totals["nn.Linear"] += linear.seconds_of_a_step(*given)
            totals["nearest"] += nearest.seconds_of_a_step(*given)
        if torch.equal(before, nearest.head.weight):
            raise RuntimeError(f"the frame must move in a window of {every} steps; it did not.")
        for kind, total in totals.items():
            windows[kind].append(total)
        both = ", ".join(f"{kind} {total:.2f} s" for kind, total in totals.items())
        print(f"window of {every} steps: {both}, ratio {totals['nearest'] / totals['nn.Linear']:.2f}", flush=True)
    medians = {kind: statistics.median(times) / every for kind, times in windows.items()}
    ratio = medians["nearest"] / medians["nn.Linear"]
    print(f"per step: nn.Linear {medians['nn.Linear']:.3f} s, nearest {medians['nearest']:.3f} s, {ratio:.2f} of nn.Linear's")
    return {"every": every, "windows": windows, "ratio": ratio}


def peak(options: argparse.Namespace) -> dict[str, float]:
    """Returns the memory of one kind, in multiples of C d floats: peaks at creation and during steps, and the remaining state."""
    small = argparse.Namespace(**{**vars(options), "num_classes": 2 * options.feature_dim})
    warm = Training(options.peak_of, small.feature_dim, small.num_classes)
    warm.seconds_of_a_step(*batch(small))
    before = start_counting_memory(CPU)
    training = Training(options.peak_of, options.feature_dim, options.num_classes)
    when_made = peak_mb(CPU) - before
    start_counting_memory(CPU)
    for _ in range(2):  # the frame moves in the first step
        training.seconds_of_a_step(*batch(options))
    in_steps = peak_mb(CPU) - before
    megabytes = 4e-6 * options.num_classes * options.feature_dim
    state = sum(tensor.nbytes for tensor in [*training.head.parameters(), *training.head.buffers()]) / 1e6
    return {"when made": when_made / megabytes, "in steps": in_steps / megabytes, "state": state / megabytes}


def compare_memory() -> dict[str, dict[str, float]]:
    """Returns the memory of every kind of classifier, each measured in a separate process."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.many_classes", *sys.argv[1:], "--peak-of", kind]
        found[kind] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        found[kind]["added"] = found[kind]["in steps"] - found["logits alone"]["in steps"]
        line = "{in steps:6.2f} C d floats in steps, {added:5.2f} added; {state:.2f} of state; {when made:.2f} when made"
        print(f"{kind:14}{line.format(**found[kind])}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-classes", type=int, default=100_000)
    parser.add_argument("--feature-dim", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--windows", type=int, default=3, help="of `every` steps")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write all measurements to this file")
    parser.add_argument("--peak-of", choices=list(KINDS), help="print the memory of only this one, as JSON")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.peak_of:
        print(json.dumps(peak(options)))
        return
    sizes = f"{options.num_classes:,} classes, {options.feature_dim} features, batch {options.batch_size}"
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {load:.1f}, {sizes}", flush=True)
    record = {
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(CPU, 1),
        "load": load,
        "sizes": {name: getattr(options, name) for name in ("num_classes", "feature_dim", "batch_size")},
        "times": compare_times(options),
        "memory": compare_memory(),
    }
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
