"""Every head's training step over nn.Linear's: head and loss, forward and backward, on one CPU thread.

    python -m benchmarks.steps --rounds 200 --record steps.json

In each round every head takes one step on the same features, so that a slow moment of the machine hits all of them alike. The
ratio is that of the fastest steps. A head that moves its frame every 10 steps has its fastest steps between two solves; its
average is over windows of 100 steps, the fastest window of each. Operations per step are counted, not timed.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.counting import CountOperations
from guided_collapse import CosineHead, FixedETFHead, NearestETFHead

SIZES = ((512, 10, 256), (1024, 100, 512), (2048, 1000, 256))
WINDOW = 100


class Linear(nn.Linear):
    """nn.Linear, called like a head."""

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return super().forward(features)


HEADS: dict[str, Callable[[int, int], nn.Module]] = {
    "linear": Linear,
    "cosine": CosineHead,
    "fixed-etf": FixedETFHead,
    "nearest-etf": NearestETFHead,
    "nearest-etf-lagged": partial(NearestETFHead, implicit_gradient=False, lagged=True),
    "nearest-etf-lagged every 10": partial(NearestETFHead, implicit_gradient=False, lagged=True, every=10),
}
COUNTED: dict[str, Callable[[int, int], nn.Module]] = {
    **{name: HEADS[name] for name in ("linear", "cosine", "fixed-etf")},
    **{
        f"{name} by {solver}": partial(HEADS[name], solver=solver)
        for name in HEADS
        if "nearest" in name
        for solver in ("factors", "products")
    },
}


def step(head: nn.Module, features: Tensor, labels: Tensor) -> None:
    loss = functional.cross_entropy(head(features, labels), labels)
    torch.autograd.grad(loss, [features, *head.parameters()])


def batch(feature_dim: int, num_classes: int, batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, feature_dim, requires_grad=True), torch.randint(num_classes, (batch_size,))


def times(feature_dim: int, num_classes: int, batch_size: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of every step, after three steps to warm up."""
    heads = {name: build(feature_dim, num_classes).train() for name, build in HEADS.items()}
    taken: dict[str, list[float]] = {name: [] for name in heads}
    batches = [batch(feature_dim, num_classes, batch_size) for _ in range(4)]
    for number in range(3 + rounds):
        for name, head in heads.items():
            start = time.perf_counter()
            step(head, *batches[number % len(batches)])
            taken[name].append(time.perf_counter() - start)
    return {name: found[3:] for name, found in taken.items()}


def average(found: list[float]) -> float:
    """The mean of the fastest window."""
    windows = [found[start : start + WINDOW] for start in range(0, max(len(found) - WINDOW + 1, 1), WINDOW)]
    return min(sum(window) / len(window) for window in windows)


def operations(feature_dim: int, num_classes: int, batch_size: int) -> dict[str, int]:
    """Operations of the third step, which is between two solves for a head that solves every 10 steps."""
    counts = {}
    for name, build in COUNTED.items():
        head, given = build(feature_dim, num_classes).train(), batch(feature_dim, num_classes, batch_size)
        for _ in range(3):
            with CountOperations() as counting:
                step(head, *given)
        counts[name] = counting.counts.operations
    return counts


def measure(sizes: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    taken = times(*sizes, rounds)
    least, mean = ({name: reduce(found) for name, found in taken.items()} for reduce in (min, average))
    print(f"\nfeature_dim {sizes[0]}, num_classes {sizes[1]}, batch {sizes[2]}: nn.Linear {1e3 * least['linear']:.3f} ms")
    for name in HEADS:
        ratios = least[name] / least["linear"], mean[name] / mean["linear"]
        print(f"  {name:30}{ratios[0]:7.2f} of nn.Linear, {ratios[1]:7.2f} on average over {WINDOW} steps", flush=True)
    counts = operations(*sizes)
    print("  operations per step: " + ", ".join(f"{name} {count}" for name, count in counts.items()), flush=True)
    shown = {"sizes": sizes, "seconds": least, "average seconds": mean, "operations": counts}
    return shown | {"ratios": {name: value / least["linear"] for name, value in least.items()}}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="steps of each head")
    parser.add_argument("--sizes", type=int, nargs=3, action="append", metavar=("D", "C", "BATCH"), help="default: three sizes")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write everything to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, {options.rounds} rounds")
    found = [measure(tuple(sizes), options.rounds) for sizes in options.sizes or SIZES]
    if options.record:
        options.record.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
