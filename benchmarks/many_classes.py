"""A training step of the nearest head with many classes against one of `nn.Linear` of the same sizes: time and memory, of one run.

    python benchmarks/many_classes.py

Both have SGD with momentum, and the same small layer before them. Their steps alternate. A step at which the frame moves is timed
apart and counts in its due share, one in `every`. Peaks of memory are those of a process for each, in units of C d floats, above
what it had before the model was made. Logits and their gradients are in all of them; "logits alone" is a constant weight.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse import NearestETFHead
from guided_collapse.profiling.memory import peak_mb, start_counting_memory

INPUT_DIM = 64
CPU = torch.device("cpu")


class Logits(nn.Module):
    """A constant weight."""

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(num_classes, feature_dim))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return features @ self.weight.T


class Linear(nn.Linear):
    """A learned weight."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return super().forward(features)


KINDS = {"logits alone": Logits, "nn.Linear": Linear, "nearest": NearestETFHead}


class Training:
    """Forward pass, backward pass and optimiser of a small layer and a classifier."""

    def __init__(self, kind: str, feature_dim: int, num_classes: int) -> None:
        self.backbone = nn.Linear(INPUT_DIM, feature_dim)
        self.head = KINDS[kind](feature_dim, num_classes)
        parameters = [*self.backbone.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    def seconds_of_a_step(self, inputs: Tensor, labels: Tensor) -> float:
        start = time.perf_counter()
        self.optimiser.zero_grad()
        functional.cross_entropy(self.head(self.backbone(inputs), labels), labels).backward()
        self.optimiser.step()
        return time.perf_counter() - start


def batch(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    return torch.randn(options.batch_size, INPUT_DIM), torch.randint(0, options.num_classes, (options.batch_size,))


def compare_times(options: argparse.Namespace) -> None:
    linear, nearest = (Training(kind, options.feature_dim, options.num_classes) for kind in ("nn.Linear", "nearest"))
    every = nearest.head.every
    nearest.seconds_of_a_step(*batch(options))
    linear.seconds_of_a_step(*batch(options))
    resting, learned, moving = [], [], []
    for index in range(options.steps):
        given = batch(options)
        learned.append(linear.seconds_of_a_step(*given))
        # Moves come at step 1 + every, 1 + 2 every, ...: a few are brought forward.
        is_moving = index % 4 == 3
        nearest.head._known_steps = every if is_moving else 1
        (moving if is_moving else resting).append(nearest.seconds_of_a_step(*given))
    with_linear, without, with_move = (statistics.median(times) for times in (learned, resting, moving))
    step = without + (with_move - without) / every
    print(f"nn.Linear {with_linear:.3f} s a step; nearest {without:.3f} s, {with_move:.3f} s when the frame moves, every {every}")
    print(f"nearest {step:.3f} s a step on average, {step / with_linear:.2f} of nn.Linear's")


def print_peak(options: argparse.Namespace) -> None:
    small = argparse.Namespace(**{**vars(options), "num_classes": 2 * options.feature_dim})
    warm = Training(options.peak_of, small.feature_dim, small.num_classes)
    warm.seconds_of_a_step(*batch(small))
    before = start_counting_memory(CPU)
    training = Training(options.peak_of, options.feature_dim, options.num_classes)
    initial_peak = peak_mb(CPU) - before
    start_counting_memory(CPU)
    for _ in range(2):  # the frame moves at the first
        training.seconds_of_a_step(*batch(options))
    unit = 4e-6 * options.num_classes * options.feature_dim
    in_steps = (peak_mb(CPU) - before) / unit
    print(f"{options.peak_of:14}{in_steps:6.2f} C d floats at most in steps, {initial_peak / unit:.2f} when made")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-classes", type=int, default=100_000)
    parser.add_argument("--feature-dim", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--peak-of", choices=list(KINDS), help="print the peak of memory of one alone")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.peak_of:
        print_peak(options)
        return
    sizes = f"{options.num_classes:,} classes, {options.feature_dim} features, batch {options.batch_size}"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {sizes}", flush=True)
    compare_times(options)
    for kind in KINDS:
        subprocess.run([sys.executable, *sys.argv, "--peak-of", kind], check=True)


if __name__ == "__main__":
    main()
