"""What a training step of one head costs, measured in a process of its own so that its peak memory is its own.

    python -m guided_collapse.experiments.profiling.step_cost < request.json

reads a request as `StepCostRequest` has it and prints the answer as one line of JSON.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import functional

from guided_collapse.experiments.data.augmentation.normalize import PixelStatistics
from guided_collapse.experiments.data.batches import Batch, ProcessShare
from guided_collapse.experiments.data.known import known_data
from guided_collapse.experiments.data.split import ImageData, Split
from guided_collapse.experiments.profiling.cost import PAPER_ROUTE, StepCostRequest
from guided_collapse.experiments.profiling.head_counts import head_counts
from guided_collapse.experiments.profiling.memory import peak_mb, start_counting_memory
from guided_collapse.experiments.records.schema import StepCost
from guided_collapse.experiments.training.build import build_model, build_optimizer
from guided_collapse.experiments.training.environment import hardware
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.training.tasks import ImageTask, Task, UnconstrainedTask
from guided_collapse.geometry.nearest import unit_frobenius_norm
from guided_collapse.geometry.simplex import check_frame_exists
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.paper.problem import ProximalProblem
from guided_collapse.paper.route import basis_by_paper_route
from guided_collapse.paper.trust_region import solve_by_trust_region


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


class TimedSteps:
    """Training steps, and the times of their parts in milliseconds.

    Args:
        train_step: one step, which marks where its parts end.
        device: where it is computed.
    """

    def __init__(self, train_step: Callable[[Marks], None], device: torch.device) -> None:
        self._train_step = train_step
        self._device = device
        self.times: list[list[float]] = []
        """Of each step that was begun; a step that memory did not suffice for has fewer parts."""
        self.note: str | None = None
        """Why no step can follow; None as long as one can."""

    def run(self, count: int, *, until: float) -> list[list[float]]:
        """Runs so many steps and returns their times; once there is one, none is begun after `until`."""
        already = len(self.times)
        for _ in range(count):
            is_late = len(self.times) > 0 and time.perf_counter() > until
            if is_late or self.note is not None:
                break
            marks = Marks(self._device)
            try:
                self._train_step(marks)
            except MemoryError as error:
                self.note = str(error)
            self.times.append(marks.milliseconds())
        return self.times[already:]


def measure_step(request: StepCostRequest) -> StepCost:
    """Medians of the parts of a step in milliseconds, the peak of memory in MB beside what was there before the model, and counts.

    What could not be measured is None, and a note says why.
    """
    # What it loads once, and the first call of everything, is not the head's.
    _warm_up_libraries()
    configuration = Configuration.from_dict(request.configuration).resolved()
    fabric = Fabric(accelerator=request.accelerator, devices=1, precision=configuration.precision)
    fabric.launch()
    task = made_up_task(configuration)
    mb_before = start_counting_memory(fabric.device)
    model = _model(configuration, task, request.head, fabric.device)
    _, optimizer = fabric.setup(model, build_optimizer(configuration, model.parameters()))
    batches = _batches(task, ProcessShare(device=fabric.device))
    steps = TimedSteps(lambda marks: _train_step(model, optimizer, fabric, next(batches), marks), fabric.device)

    start = time.perf_counter()
    warm_up = steps.run(request.warm_up, until=start + request.seconds / 2)
    measured = steps.run(request.steps, until=start + request.seconds)
    if not measured:  # a step that takes all the time there is has to do without warm-up
        measured = warm_up[-1:]
    by_part = zip(*measured, strict=True)
    peak = peak_mb(fabric.device)
    return StepCost(
        **{name: statistics.median(times) for name, times in zip(StepCost.PARTS, by_part, strict=False)},
        peak_mb=peak - mb_before,
        steps=len(measured),
        note=steps.note,
        # What the paper's route computes is not torch's alone.
        counts=() if request.head == PAPER_ROUTE else head_counts(request.head, model.head, configuration.batch_size),
        feature_dim=model.head.feature_dim,
        num_classes=model.head.num_classes,
        hardware=hardware(fabric.device, 1).to_json(),
    )


def made_up_task(configuration: Configuration, num_images: int | None = None) -> Task:
    """The experiment with random images in place of its data: what a step costs does not depend on what they show.

    Args:
        configuration: the experiment.
        num_images: None is one batch.
    """
    if configuration.is_unconstrained:
        return UnconstrainedTask(configuration)
    known = known_data(configuration.data)
    size = configuration.image_size or known.image_size
    num_images = num_images or configuration.batch_size
    images = torch.randint(
        256, (num_images, known.channels, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    split = Split(images, torch.arange(num_images) % known.num_classes)
    data = ImageData(configuration.data, split, split, tuple(map(str, range(known.num_classes))))
    return ImageTask(configuration, data, PixelStatistics(known.mean, known.std))


def _warm_up_libraries() -> None:
    tiny = Configuration("tiny", data="unconstrained", backbone="unconstrained", num_classes=3, feature_dim=4, num_samples=6)
    tiny = replace(tiny, head="nearest-etf", batch_size=6).resolved()
    task = made_up_task(tiny)
    model = build_model(tiny, task, torch.device("cpu"))
    inputs, labels = next(_batches(task, ProcessShare()))
    functional.cross_entropy(model(inputs, labels), labels).backward()  # type: ignore[no-untyped-call]


def _model(configuration: Configuration, task: Task, head_name: str, device: torch.device) -> Classifier:
    if head_name != PAPER_ROUTE:
        return build_model(replace(configuration, head=head_name), task, device)
    model = build_model(replace(configuration, head="fixed-etf"), task, device)
    check_frame_exists(model.head.feature_dim, model.head.num_classes)
    head = PaperRouteHead(
        model.head.feature_dim,
        model.head.num_classes,
        scale=configuration.scale,
        proximal_weight=configuration.proximal_weight,
    )
    return Classifier(model.backbone, head)


class PaperRouteHead(NearestETFHead):
    """The implicit head as the paper computes it: by the trust region, differentiated by the dense declarative node."""

    def _solve(self, centered_class_means: Tensor) -> Tensor:
        unit_means = unit_frobenius_norm(centered_class_means)
        anchor = self.basis.detach().clone()
        if int(self.class_means.steps) == 1:
            first = ProximalProblem(unit_means.detach().double().cpu().T, None, self.proximal_weight)
            anchor = solve_by_trust_region(first, anchor.double().cpu()).to(anchor)
        return basis_by_paper_route(unit_means, anchor, self.proximal_weight)


def _batches(task: Task, share: ProcessShare) -> Iterator[Batch]:
    for epoch in itertools.count(1):
        yield from task.training_batches(epoch, share)


def _train_step(model: Classifier, optimizer: torch.optim.Optimizer, fabric: Fabric, batch: Batch, marks: Marks) -> None:
    """One step in four parts; the optimizer's own work is not timed."""
    model.train()
    optimizer.zero_grad()
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
    optimizer.step()


if __name__ == "__main__":
    print(json.dumps(measure_step(StepCostRequest(**json.load(sys.stdin))).to_json()))
