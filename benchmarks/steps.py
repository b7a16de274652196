"""Time of a training step of each head relative to nn.Linear: head, loss, backward and optimizer, on one CPU thread.

    python -m benchmarks.steps --rounds 200 --record steps.json
    python -m benchmarks.steps --compiled

In each round, every head takes one step on the same features, so that slow moments of the machine affect all alike. Heads with
parameters train by SGD with momentum. Ratios are of the fastest steps. For a head that moves its frame every 10 steps, the
fastest steps lie between two solves, so average steps are compared too, over the fastest window of 100 steps. `--compiled` also
measures compiled steps, of which the optimizer is not compiled. Operations per step are counted with checks of values turned off.
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
    "linear": Linear,
    **{name: partial(HEADS[name], check_values=False) for name in ("cosine", "fixed-etf")},
    **{
        f"{name} by {solver}": partial(HEADS[name], check_values=False, solver=solver)
        for name in HEADS
        if "nearest" in name
        for solver in ("factors", "products")
    },
}


class Step:
    """A training step of a head."""

    def __init__(self, head: nn.Module, *, compiled: bool = False) -> None:
        self.loss = torch.compile(partial(loss_of, head)) if compiled else partial(loss_of, head)
        parameters = list(head.train().parameters())
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9) if parameters else None

    def __call__(self, features: Tensor, labels: Tensor) -> None:
        self.loss(features, labels).backward()
        features.grad = None
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()


def loss_of(head: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(head(features, labels), labels)


def batch(feature_dim: int, num_classes: int, batch_size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch_size, feature_dim, requires_grad=True), torch.randint(num_classes, (batch_size,))


def times(feature_dim: int, num_classes: int, batch_size: int, rounds: int, compiled: bool) -> dict[str, list[float]]:
    """Returns the seconds of every step by head, after three steps to warm up."""
    steps = {name: Step(build(feature_dim, num_classes)) for name, build in HEADS.items()}
    if compiled:
        steps |= {f"compiled {name}": Step(build(feature_dim, num_classes), compiled=True) for name, build in HEADS.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    batches = [batch(feature_dim, num_classes, batch_size) for _ in range(4)]
    for number in range(3 + rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step(*batches[number % len(batches)])
            taken[name].append(time.perf_counter() - start)
    return {name: found[3:] for name, found in taken.items()}


def average(found: list[float]) -> float:
    """Returns the mean seconds of a step in the fastest window of WINDOW steps."""
    windows = [found[start : start + WINDOW] for start in range(0, max(len(found) - WINDOW + 1, 1), WINDOW)]
    return min(sum(window) / len(window) for window in windows)


def operations(feature_dim: int, num_classes: int, batch_size: int) -> dict[str, int]:
    """Returns the number of operations in the third step, which is between two solves for heads that solve every 10 steps."""
    counts = {}
    for name, build in COUNTED.items():
        # Meta tensors stand in for tensors on an accelerator, where heads solve by products.
        device = "cpu" if name.endswith("factors") else "meta"
        head, tensors = build(feature_dim, num_classes).to(device).train(), batch(feature_dim, num_classes, batch_size)
        features, labels = (tensor.detach().to(device) for tensor in tensors)
        features.requires_grad_()
        for _ in range(3):
            with CountOperations() as counting:
                torch.autograd.grad(loss_of(head, features, labels), [features, *head.parameters()])
        counts[name] = counting.counts.operations
    return counts


def measure(sizes: tuple[int, int, int], rounds: int, compiled: bool) -> dict[str, Any]:
    taken = times(*sizes, rounds, compiled)
    least, mean = ({name: reduce(found) for name, found in taken.items()} for reduce in (min, average))
    print(f"\nfeature_dim {sizes[0]}, num_classes {sizes[1]}, batch {sizes[2]}: nn.Linear {1e3 * least['linear']:.3f} ms")
    for name in taken:
        ratios = least[name] / least["linear"], mean[name] / mean["linear"]
        line = f"  {name:37}{ratios[0]:7.2f} of nn.Linear, {ratios[1]:7.2f} on average over {WINDOW} steps"
        if name.startswith("compiled "):
            over = least[name] / least[name.removeprefix("compiled ")], least[name] / least["compiled linear"]
            line += f"; {over[0]:.2f} of eager, {over[1]:.2f} of compiled nn.Linear"
        print(line, flush=True)
    counts = operations(*sizes)
    print("  operations per step: " + ", ".join(f"{name} {count}" for name, count in counts.items()), flush=True)
    shown = {"sizes": sizes, "seconds": least, "average seconds": mean, "operations": counts}
    return shown | {"ratios": {name: value / least["linear"] for name, value in least.items()}}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="steps per head")
    parser.add_argument("--sizes", type=int, nargs=3, action="append", metavar=("D", "C", "BATCH"), help="default: three sizes")
    parser.add_argument("--compiled", action="store_true", help="also compile every step")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write everything to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # One function compiles for many heads; beyond the limit, torch would fall back to eager mode.
    torch._dynamo.config.recompile_limit = 64
    print(f"torch {torch.__version__}, one thread, {options.rounds} rounds")
    found = [measure(tuple(sizes), options.rounds, options.compiled) for sizes in options.sizes or SIZES]
    if options.record:
        options.record.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
