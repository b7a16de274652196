"""What a training step of one head costs, measured in a process of its own so that its peak memory is its own.

    python -m guided_collapse.profiling.step_cost < request.json

reads a request as `StepCostRequest` has it and prints the answer as one line of JSON.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.nn import functional

from guided_collapse.data.augmentation.normalise import PixelStatistics
from guided_collapse.data.batches import Batch, ProcessShare
from guided_collapse.data.known import known_data
from guided_collapse.data.split import ImageData, Split
from guided_collapse.heads.classifier import Classifier
from guided_collapse.profiling.memory import peak_mb, start_counting_memory
from guided_collapse.profiling.paper_head import PaperRouteHead
from guided_collapse.training import randomness
from guided_collapse.training.environment import hardware
from guided_collapse.training.loop import build_model
from guided_collapse.training.optimisers import build_optimiser
from guided_collapse.training.settings.configuration import Configuration
from guided_collapse.training.tasks import ImageTask, Task, UnconstrainedTask

PAPER_ROUTE = "paper-route"
PARTS = ("backbone_forward_ms", "head_forward_ms", "head_backward_ms", "backbone_backward_ms")


@dataclass(frozen=True)
class StepCostRequest:
    """What to measure.

    Attributes:
        configuration: the experiment, as plain values.
        head: a head's name, or that of the paper's own route.
        steps: measured steps.
        warm_up: steps before them.
        seconds: no step is begun after this time once one is done.
        accelerator: kind of device.
    """

    configuration: dict[str, Any]
    head: str
    steps: int
    warm_up: int
    seconds: float
    accelerator: str


class Marks:
    """Points in time of the device's work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []

    def add(self) -> None:
        """Marks that what has been asked for so far is done."""
        if self._device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
            return
        if self._device.type == "mps":
            torch.mps.synchronize()
        self._marks.append(time.perf_counter())

    def milliseconds(self) -> list[float]:
        """The time from each mark to the next."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return [before.elapsed_time(after) for before, after in itertools.pairwise(self._marks)]
        return [1e3 * (after - before) for before, after in itertools.pairwise(self._marks)]


def measure_step(request: StepCostRequest) -> dict[str, Any]:
    """Medians of the parts of a step in milliseconds, and the peak of memory in MB beside what was there before the model.

    What could not be measured is missing, and a note says why.
    """
    # What it loads once, and the first call of everything, is not the head's.
    _warm_up_libraries()
    configuration = Configuration.from_dict(request.configuration).resolved()
    fabric = Fabric(accelerator=request.accelerator, devices=1, precision=configuration.precision)
    fabric.launch()
    task = made_up_task(configuration)
    before = start_counting_memory(fabric.device)
    model = _model(configuration, task, request.head, fabric.device)
    source = randomness.generator(configuration.seed, randomness.OPTIMISER)
    _, optimiser = fabric.setup(model, build_optimiser(configuration, model.parameters(), source))
    batches = _batches(task, ProcessShare(device=fabric.device))
    steps: list[list[float]] = []
    notes: list[str] = []

    def run(count: int, until: float) -> None:
        for _ in range(count):
            if notes or (steps and time.perf_counter() > until):
                return
            marks = Marks(fabric.device)
            try:
                _train_step(model, optimiser, fabric, next(batches), marks)
            except MemoryError as error:
                notes.append(str(error))
            steps.append(marks.milliseconds())

    start = time.perf_counter()
    run(request.warm_up, start + request.seconds / 2)
    measured_from = len(steps)
    run(request.steps, start + request.seconds)
    # A step that takes all the time there is has to do without warm-up.
    measured = steps[measured_from:] or steps[-1:]
    parts = zip(*measured, strict=True)
    return {
        **{name: statistics.median(times) for name, times in zip(PARTS, parts, strict=False)},
        "peak_mb": peak_mb(fabric.device) - before,
        "steps": len(measured),
        "note": notes[0] if notes else None,
        "feature_dim": model.head.feature_dim,
        "num_classes": model.head.num_classes,
        "hardware": hardware(fabric.device, 1),
    }


def made_up_task(configuration: Configuration, num_images: int | None = None) -> Task:
    """The experiment with random images in place of its data: what a step costs does not depend on what they show.

    Args:
        configuration: the experiment.
        num_images: None is one batch.
    """
    if configuration.is_unconstrained:
        return UnconstrainedTask(configuration)
    known = known_data(configuration.data)
    size, num_images = configuration.image_size or known.image_size, num_images or configuration.batch_size
    images = torch.randint(
        256, (num_images, known.channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    split = Split(images, torch.arange(num_images) % known.num_classes)
    data = ImageData(configuration.data, split, split, tuple(map(str, range(known.num_classes))))
    return ImageTask(configuration, data, PixelStatistics(known.mean, known.std))


def _warm_up_libraries() -> None:
    tiny = Configuration("tiny", data="unconstrained", backbone="unconstrained", num_classes=3, feature_dim=4, num_samples=6)
    tiny = replace(tiny, head="implicit", batch_size=6).resolved()
    task = made_up_task(tiny)
    model = build_model(tiny, task, torch.device("cpu"))
    inputs, labels = next(_batches(task, ProcessShare()))
    functional.cross_entropy(model(inputs, labels), labels).backward()  # type: ignore[no-untyped-call]


def _model(configuration: Configuration, task: Task, head_name: str, device: torch.device) -> Classifier:
    if head_name != PAPER_ROUTE:
        return build_model(replace(configuration, head=head_name), task, device)
    model = build_model(replace(configuration, head="fixed"), task, device)
    head = PaperRouteHead(
        model.head.feature_dim,
        model.head.num_classes,
        temperature=configuration.temperature,
        proximal_weight=configuration.proximal_weight,
    )
    return Classifier(model.backbone, head)


def _batches(task: Task, share: ProcessShare) -> Iterator[Batch]:
    for epoch in itertools.count(1):
        yield from task.training_batches(epoch, share)


def _train_step(model: Classifier, optimiser: torch.optim.Optimizer, fabric: Fabric, batch: Batch, marks: Marks) -> None:
    """One step in four parts; the optimiser's own work is not timed."""
    model.train()
    optimiser.zero_grad()
    marks.add()
    with fabric.autocast():
        features = model.backbone(batch.inputs)
        marks.add()
        loss = functional.cross_entropy(model.head(features, batch.labels), batch.labels)
    marks.add()
    grad_features, *grads = torch.autograd.grad(loss, [features, *model.head.parameters()])
    marks.add()
    for parameter, grad in zip(model.head.parameters(), grads, strict=True):
        parameter.grad = grad
    features.backward(grad_features)
    marks.add()
    optimiser.step()


if __name__ == "__main__":
    print(json.dumps(measure_step(StepCostRequest(**json.load(sys.stdin)))))
