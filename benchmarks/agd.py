"""Time of an AGD step relative to SGD with momentum, on the parameters of ResNet-18; steps are interleaved in one run."""

import statistics
import time

import torch
from torch import nn

from guided_collapse import AGD


def resnet18_shapes() -> list[tuple[int, ...]]:
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7)]
    width = 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        shapes += [(outputs, width, 3, 3), (outputs, outputs, 3, 3), (outputs, outputs, 3, 3), (outputs, outputs, 3, 3)]
        shapes += [(outputs, width, 1, 1)] if stage else []
        width = outputs
    return [*shapes, (1000, 512)]


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.randn(shape)) for shape in resnet18_shapes()]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def main() -> None:
    optimizers = {"SGD with momentum": torch.optim.SGD(parameters(), lr=1e-3, momentum=0.9), "AGD": AGD(parameters())}
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(30):
        for name, optimizer in optimizers.items():
            start = time.perf_counter()
            optimizer.step()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken[5:]) for name, taken in times.items()}
    total = sum(parameter.numel() for parameter in parameters())
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {total:,} parameters")
    for name, median in medians.items():
        print(f"{name:20} {1e3 * median:7.2f} ms per step, {median / medians['SGD with momentum']:.2f} of SGD's")


if __name__ == "__main__":
    main()
