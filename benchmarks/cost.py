"""Time, memory and operation counts of a training step of each head, on random inputs in the shape of an experiment.

    python -m benchmarks.cost ufm-10 --steps 5

prints tables and writes `OUT/<experiment>.json` after each head. Every head runs in a separate process, so that it has its own peak
memory, and so does the nearest-ETF head as the paper computes it (trust region and dense gradient), where it fits into memory.
Operation counts are the same on every machine; with the peak rates of a device, they give lower bounds on the time.
"""

import copy
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cost_tables import cost_table, counts_table
from benchmarks.counting import CountOperations, OperationCounts, peak_mb, start_counting_memory
from guided_collapse.experiments.configuration import Configuration, HeadName, Precision
from guided_collapse.experiments.data.augment import PixelStatistics
from guided_collapse.experiments.data.batches import Batch, ProcessShare
from guided_collapse.experiments.data.known import known_data
from guided_collapse.experiments.data.split import ImageData, Split
from guided_collapse.experiments.launch import commit, hardware, versions
from guided_collapse.experiments.loop import build_optimizer
from guided_collapse.experiments.presets import preset
from guided_collapse.experiments.tasks import ImageTask, Task, UnconstrainedTask, build_model
from guided_collapse.geometry.nearest import NearestETF, checked_solver
from guided_collapse.geometry.simplex import frame_weight, unit_frobenius_norm
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.paper.declarative_node import basis_by_paper_route
from guided_collapse.paper.trust_region import ProximalProblem, solve_by_trust_region

PAPER_ROUTE = "paper-route"
PARTS = ("backbone_forward_ms", "head_forward_ms", "head_backward_ms", "backbone_backward_ms")
NVIDIA = "float32 without tensor cores"
# Peak TFLOP/s and GB/s, and the source of these figures.
KNOWN_DEVICES: dict[str, tuple[float, float, str]] = {
    "A100": (19.5, 1555.0, f"NVIDIA A100 data sheet, 40 GB SXM, {NVIDIA}"),
    "H100": (67.0, 3350.0, f"NVIDIA H100 data sheet, SXM, {NVIDIA}"),
    "V100": (15.7, 900.0, f"NVIDIA V100 data sheet, SXM2, {NVIDIA}"),
    "T4": (8.1, 300.0, f"NVIDIA T4 data sheet, {NVIDIA}"),
    "RTX-4090": (82.6, 1008.0, f"NVIDIA GeForce RTX 4090 specifications, {NVIDIA}"),
    "M1": (2.6, 68.0, "Apple's announcement of M1, graphics with 8 cores; its memory, LPDDR4X-4266 of 128 bits"),
}
DeviceName = tyro.extras.literal_type_from_choices(list(KNOWN_DEVICES))
# Meta tensors have shapes but no values; heads treat them like tensors on an accelerator.
DEVICE_KINDS = (("cpu", torch.device("cpu")), ("accelerator", torch.device("meta")))


@dataclass(frozen=True)
class CostRequest:
    """Measure time, memory and operation counts of a training step for each head."""

    experiment: tyro.conf.Positional[str]
    """Name of a preset."""
    heads: tuple[HeadName, ...] = ("cosine", "fixed-etf", "nearest-etf", "nearest-etf-detached", "nearest-etf-lagged")
    """Heads to measure."""
    paper_route: bool = True
    """Also measure the nearest-ETF head as the paper computes it, where memory allows."""
    steps: int = 10
    """Number of measured steps; the result is their median."""
    warm_up: int = 3
    """Number of steps before the measured ones."""
    batch_size: int | None = None
    """Samples per step; by default the experiment's batch size."""
    precision: Precision = "32-true"
    """Precision of the forward and backward passes."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device to run on."""
    limit_seconds: float = 240.0
    """Time limit per head, including startup."""
    device_named: DeviceName | None = None
    """A known device, for lower bounds on the time."""
    peak_rates: tuple[float, float] | None = None
    """Peak rates of a device that is not known, in float32 TFLOP/s and GB/s."""
    out: Path = Path("runs/cost")
    """Output folder."""

    @property
    def configuration(self) -> Configuration:
        """The experiment to measure."""
        start = preset(self.experiment)
        return replace(start, precision=self.precision, batch_size=self.batch_size or start.batch_size).resolved()

    @property
    def peaks(self) -> dict[str, Any] | None:
        """The peak rates for the record, or None without a device or rates."""
        if self.device_named is None and self.peak_rates is None:
            return None
        tflops, gbs, source = KNOWN_DEVICES[self.device_named] if self.device_named else (*self.peak_rates, "as given")
        return {"device_name": self.device_named, "float32_tflops": tflops, "memory_gbs": gbs, "source": source}


def measure_cost(request: CostRequest) -> dict[str, Any]:
    """Measures every head in a separate process, writes the record after each, and returns it."""
    configuration = request.configuration
    record: dict[str, Any] = {"format": 1, "kind": "cost", "experiment": configuration.experiment, "rows": []}
    record |= {name: getattr(configuration, name) for name in ("batch_size", "precision")}
    record |= {"feature_dim": None, "num_classes": None, "versions": versions(), "commit": commit(), "hardware": {}}
    record |= {"counts": [], **({"peaks": request.peaks} if request.peaks else {})}
    request.out.mkdir(parents=True, exist_ok=True)
    for head in [*dict.fromkeys(request.heads), *([PAPER_ROUTE] if request.paper_route else [])]:
        print(f"{configuration.experiment} {head}: measuring for up to {request.limit_seconds:g} s", file=sys.stderr, flush=True)
        answer = _measured_in_a_process(request, head)
        record["rows"].append(_row(head, answer))
        record["counts"] += answer.get("counts", [])
        record |= {name: answer[name] for name in ("feature_dim", "num_classes", "hardware") if name in answer}
        (request.out / f"{configuration.experiment}.json").write_text(json.dumps(record, indent=2) + "\n")
    return record


def _measured_in_a_process(request: CostRequest, head: str) -> dict[str, Any]:
    is_paper_route = head == PAPER_ROUTE
    configuration = replace(request.configuration, head="fixed-etf" if is_paper_route else head)
    asked = {"configuration": configuration.to_dict(), "paper_route": is_paper_route, "seconds": request.limit_seconds / 2}
    asked |= {"steps": request.steps, "warm_up": request.warm_up, "accelerator": request.accelerator}
    command = [sys.executable, "-m", "benchmarks.cost", "--one", json.dumps(asked)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=request.limit_seconds)
    except subprocess.TimeoutExpired:
        return {"note": f"not one step done after {request.limit_seconds:.0f} s"}
    if done.returncode < 0:
        return {"note": f"its process was killed by signal {-done.returncode}, probably for lack of memory"}
    if done.returncode > 0:
        return {"note": f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"}
    return json.loads(done.stdout.splitlines()[-1])


def _row(head: str, answer: dict[str, Any]) -> dict[str, Any]:
    backbone_forward, head_forward, head_backward, backbone_backward = (answer.get(name) for name in PARTS)
    return {
        "head": head,
        "forward_ms": None if head_forward is None else backbone_forward + head_forward,
        "backward_ms": None if backbone_backward is None else head_backward + backbone_backward,
        "head_forward_ms": head_forward,
        "head_backward_ms": head_backward,
        "peak_mb": None if answer.get("note") else answer.get("peak_mb"),  # an unfinished step may not have reached its peak
        "steps": answer.get("steps"),
        "note": answer.get("note"),
    }


def measure_step(
    configuration: Configuration, *, paper_route: bool = False, steps: int, warm_up: int, seconds: float, accelerator: str
) -> dict[str, Any]:
    """Returns the median time of each part of a step in milliseconds, the peak of additional memory in MB, and operation counts.

    No new warm-up step starts after half of `seconds`, and no measured step after all of them. If a step runs out of memory, the
    result has a note, and the times of the parts that were done.
    """
    # Loads libraries and calls everything once, before memory is counted.
    tiny = replace(preset("ufm-10"), num_classes=3, feature_dim=4, num_samples=6, batch_size=6).resolved()
    tiny_task = made_up_task(tiny)
    inputs, labels = next(_batches(tiny_task, ProcessShare()))
    functional.cross_entropy(build_model(tiny, tiny_task, torch.device("cpu"))(inputs, labels), labels).backward()

    fabric = Fabric(accelerator=accelerator, devices=1, precision=configuration.precision)
    fabric.launch()
    task = made_up_task(configuration)
    mb_before = start_counting_memory(fabric.device)
    model = build_model(configuration, task, fabric.device)
    if paper_route:
        model.head = PaperRouteHead(*_sizes(model.head), scale=configuration.scale, proximal_weight=configuration.proximal_weight)
    _, optimizer = fabric.setup(model, build_optimizer(configuration, model))
    batches = _batches(task, ProcessShare(device=fabric.device))
    measured: list[list[float]] = []
    note, start = None, time.perf_counter()
    for count, limit in ((warm_up, seconds / 2), (steps, seconds)):
        of_warm_up, measured = measured, []
        while len(measured) < count and note is None and (not (of_warm_up or measured) or time.perf_counter() - start < limit):
            marks = Marks(fabric.device)
            try:
                train_step(model, optimizer, fabric, next(batches), marks)
            except MemoryError as error:
                note = str(error)
            measured.append(marks.milliseconds())
    measured = measured or of_warm_up[-1:]  # if warm-up took all the time, its last step is the measurement
    feature_dim, num_classes = _sizes(model.head)
    return {
        **{name: statistics.median(times) for name, times in zip(PARTS, zip(*measured, strict=True), strict=False)},
        "peak_mb": peak_mb(fabric.device) - mb_before,
        "steps": len(measured),
        "note": note,
        # The paper's route leaves torch, so its operations cannot be counted.
        "counts": [] if paper_route else head_counts(configuration.head, model.head, configuration.batch_size),
        "feature_dim": feature_dim,
        "num_classes": num_classes,
        "hardware": hardware(fabric.device, 1),
    }


class Marks:
    """Time stamps of the work on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def add(self) -> None:
        if self._device.type == "cuda":
            self._marks.append(torch.cuda.Event(enable_timing=True))
            self._marks[-1].record()
            return
        if self._device.type == "mps":
            torch.mps.synchronize()
        self._marks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """Returns the times between consecutive marks."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [before.elapsed_time(after) for before, after in itertools.pairwise(self._marks)]
        return [1e3 * (after - before) for before, after in itertools.pairwise(self._marks)]


def train_step(model: Classifier, optimizer: torch.optim.Optimizer, fabric: Fabric, batch: Batch, marks: Marks) -> None:
    """Runs one training step with a mark before and after each of `PARTS`; the optimizer is not timed."""
    model.train()
    optimizer.zero_grad()
    marks.add()
    with fabric.autocast():
        features = model.backbone(batch.inputs)
        marks.add()
        loss = functional.cross_entropy(_logits(model.head, features, batch.labels), batch.labels)
    marks.add()
    grad_features, *grads = torch.autograd.grad(loss, [features, *model.head.parameters()])
    marks.add()
    for parameter, grad in zip(model.head.parameters(), grads, strict=True):
        parameter.grad = grad
    features.backward(grad_features)
    marks.add()
    optimizer.step()


def made_up_task(configuration: Configuration, num_images: int | None = None) -> Task:
    """Returns the task of an experiment with random images, by default one batch; their pixels do not affect the cost."""
    if configuration.is_unconstrained:
        return UnconstrainedTask(configuration)
    known = known_data(configuration.data)
    size = configuration.image_size or known.image_size
    num_images = num_images or configuration.batch_size
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (num_images, known.channels, size, size), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.arange(num_images) % known.num_classes)
    data = ImageData(configuration.data, split, split, tuple(map(str, range(known.num_classes))))
    return ImageTask(configuration, data, PixelStatistics(known.mean, known.std))


def _batches(task: Task, share: ProcessShare) -> Iterator[Batch]:
    for epoch in itertools.count(1):
        yield from task.training_batches(epoch, share)


def _sizes(head: nn.Module) -> tuple[int, int]:
    return head.in_features, head.out_features


def _logits(head: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return head(features) if isinstance(head, nn.Linear) else head(features, labels)


class PaperRouteHead(NearestETFHead):
    """The nearest-ETF head as the paper computes it: a trust region, differentiated by the dense declarative node."""

    def _solve(self, class_means: Tensor) -> NearestETF:
        unit_means = unit_frobenius_norm(class_means)
        anchor = self.basis.detach().clone()
        if int(self.class_means.steps) == 1:
            first = ProximalProblem(unit_means.detach().double().cpu().T, None, self.proximal_weight)
            anchor = solve_by_trust_region(first, anchor.double().cpu()).to(anchor)
        basis = basis_by_paper_route(unit_means, anchor, self.proximal_weight)
        return NearestETF(basis, frame_weight(basis), class_means, None)


def head_counts(name: str, head: nn.Module, batch_size: int) -> list[dict[str, Any]]:
    """Returns operation counts of a step of head and loss, forward and backward, for each kind of device."""
    return [
        {
            "head": name,
            "device_kind": kind,
            "solver": checked_solver(head.solver, device) if isinstance(head, NearestETFHead) else None,
            **asdict(step_counts(copy.deepcopy(head).to(device), batch_size, device)),
        }
        for kind, device in DEVICE_KINDS
    ]


def step_counts(head: nn.Module, batch_size: int, device: torch.device) -> OperationCounts:
    """Returns operation counts of the second step, because the first one may do extra work."""
    head.train()
    feature_dim, num_classes = _sizes(head)
    labels = torch.arange(batch_size, device=device) % num_classes
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        features = torch.randn(batch_size, feature_dim, generator=generator).to(device).requires_grad_()
        with CountOperations() as counting:
            loss = functional.cross_entropy(_logits(head, features, labels), labels)
            torch.autograd.grad(loss, [features, *head.parameters()])
    return counting.counts


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--one"]:
        asked = json.loads(arguments[1])
        print(json.dumps(measure_step(Configuration(**asked.pop("configuration")), **asked)))
        return
    request = tyro.cli(CostRequest, prog="python -m benchmarks.cost", args=arguments)
    record = measure_cost(request)
    print(cost_table([record]))
    if record["counts"]:
        print(counts_table([record]))
    print(request.out / f"{record['experiment']}.json")


if __name__ == "__main__":
    main()
