"""What the heads cost in an experiment: time of a step, peak memory, and what a step asks of a device, by count.

Each head is measured by `step_cost` in a process of its own, and so is the paper's own route where it fits. Here nothing needs
torch before a request is understood.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from guided_collapse.experiments.errors import RequestError, WorkError, requested
from guided_collapse.experiments.profiling.peaks import GIVEN, KNOWN_DEVICES, DeviceName
from guided_collapse.experiments.records.files import write_json
from guided_collapse.experiments.records.schema import COST, CostRecord, HeadCost, PeakRates, StepCost
from guided_collapse.experiments.training.settings.checks import (
    COUNT,
    POSITIVE,
    POSITIVE_COUNT,
    Range,
    at_least,
    check_choice,
    check_ranges,
)
from guided_collapse.experiments.configuration import Configuration, HeadName, Precision
from guided_collapse.experiments.configuration import Accelerator

PAPER_ROUTE = "paper-route"
"""The name of the implicit head as the paper computes it, beside those of the heads."""


@dataclass(frozen=True)
class CostRequest:
    """Measure time and memory of a training step for each head, on random inputs of the experiment's shape.

    Beside them stands what head and loss ask of a CPU and of an accelerator, by count, which is the same on every machine.
    """

    heads: tuple[HeadName, ...] = ("cosine", "fixed-etf", "nearest-etf", "nearest-etf-detached", "nearest-etf-lagged")
    """Heads to measure."""
    paper_route: bool = True
    """Also measure the implicit head as the paper computes it, by trust region and dense gradient, where memory allows."""
    steps: int = 10
    """Number of measured steps; the result is their median."""
    warm_up: int = 3
    """Number of steps before the measured ones."""
    batch_size: int | None = None
    """Samples per step; by default the experiment's batch size."""
    precision: Precision = "32-true"
    """Precision of the forward and backward pass."""
    accelerator: Accelerator = "auto"
    """Kind of device to run on."""
    limit_seconds: float = 240.0
    """Time limit for each head, including its start; a head that takes longer is given up, and the record says so."""
    peak_tflops: float | None = None
    """Most float32 operations of a device in a second, in 10^12; with --peak-gbs, the table has lower bounds of time."""
    peak_gbs: float | None = None
    """Most bytes that a device reads and writes in a second, in 10^9."""
    device_named: DeviceName | None = None
    """A device whose peak rates are known, in place of the two rates."""
    out: Path = Path("runs")
    """Output folder."""

    @property
    def peaks(self) -> PeakRates | None:
        """The peak rates that were given or named; None if there are none."""
        if self.device_named is not None:
            return KNOWN_DEVICES[self.device_named]
        if self.peak_tflops is None or self.peak_gbs is None:
            return None
        return PeakRates(float32_tflops=self.peak_tflops, memory_gbs=self.peak_gbs, source=GIVEN)

    def __post_init__(self) -> None:
        check_ranges(self, _COST_RANGES)
        if not self.heads and not self.paper_route:
            raise RequestError("cost needs at least one head; got none. Give --heads, or leave --no-paper-route out.")
        self._check_peaks()

    def _check_peaks(self) -> None:
        rates = [name for name in ("peak_tflops", "peak_gbs") if getattr(self, name) is not None]
        if self.device_named is not None:
            check_choice("device_named", self.device_named, tuple(KNOWN_DEVICES))
            if rates:
                raise RequestError(
                    "device_named must stand alone, as its peak rates are known; "
                    f"got {self.device_named} and {' and '.join(rates)}. Give the name, or both rates."
                )
        if len(rates) == 1:
            raise RequestError(f"peak_tflops and peak_gbs go together; got {rates[0]} alone. Give both, or --device-named.")
        if self.peaks is not None and not self.heads:
            raise RequestError(
                "peak rates need a head whose work is counted, and that of the paper's route is not; "
                "got no head, so that they would be without effect. Give --heads, or leave them out."
            )


_COST_RANGES: Mapping[str, Range] = {
    "steps": at_least(1),
    "warm_up": COUNT,
    "batch_size": POSITIVE_COUNT,
    "peak_tflops": POSITIVE,
    "peak_gbs": POSITIVE,
    "limit_seconds": Range("positive and at most a day", 1e-3, 86400.0),
}


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


def measure_cost(configuration: Configuration, request: CostRequest) -> Path:
    """Measures every head, each in a process of its own, and writes `cost.json` into the experiment's folder.

    Args:
        configuration: the experiment.
        request: what to measure.

    Returns:
        The file.

    Raises:
        RequestError: for a batch size that the experiment cannot have, a device that is not there or lacks the precision, or a
            folder that cannot be written, before anything is measured.
        WorkError: if no head could be measured.
    """
    from guided_collapse.experiments.training.launch import check_device  # here, because it takes torch

    with requested():
        check_device(request.accelerator, request.precision)
        if request.batch_size is not None:
            configuration = replace(configuration, batch_size=request.batch_size)
        configuration = replace(configuration, precision=request.precision).resolved()
        file = request.out / configuration.experiment / COST
        file.parent.mkdir(parents=True, exist_ok=True)
    heads = list(dict.fromkeys(request.heads))
    if request.paper_route:
        heads.append(PAPER_ROUTE)
    answers: dict[str, StepCost] = {}
    for head in heads:
        print(f"{configuration.experiment} {head}: measuring, at most {request.limit_seconds:g} s", file=sys.stderr, flush=True)
        answers[head] = _measured(configuration, head, request)
        # After each head, so that an interruption loses none.
        write_json(file, _record(configuration, answers, request.peaks).to_json())
    failures = [answer.note for answer in answers.values() if answer.failed]
    if len(failures) == len(answers):
        raise WorkError(f"no head could be measured: {failures[0]}")
    return file


def _record(configuration: Configuration, answers: Mapping[str, StepCost], peaks: PeakRates | None) -> CostRecord:
    from guided_collapse.experiments.training.environment import commit, versions  # here, because it takes torch

    known = next((answer for answer in answers.values() if answer.hardware), StepCost())
    return CostRecord(
        experiment=configuration.experiment,
        rows=tuple(_row(head, answer) for head, answer in answers.items()),
        batch_size=configuration.batch_size,
        precision=configuration.precision,
        feature_dim=known.feature_dim,
        num_classes=known.num_classes,
        versions=versions(),
        commit=commit(),
        hardware=known.hardware,
        counts=tuple(counts for answer in answers.values() for counts in answer.counts),
        peaks=peaks,
    )


def _measured(configuration: Configuration, head: str, request: CostRequest) -> StepCost:
    asked = StepCostRequest(
        configuration=configuration.to_dict(),
        head=head,
        steps=request.steps,
        warm_up=request.warm_up,
        seconds=request.limit_seconds / 2,
        accelerator=request.accelerator,
    )
    command = [sys.executable, "-m", "guided_collapse.experiments.profiling.step_cost"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asdict(asked)), capture_output=True, text=True, check=False, timeout=request.limit_seconds
        )
    except subprocess.TimeoutExpired:
        return StepCost(note=f"not one step done after {request.limit_seconds:.0f} s")
    if done.returncode < 0:
        return StepCost(note=f"its process was killed by signal {-done.returncode}, probably for want of memory")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        return StepCost(failed=True, note=f"failed: {said[-1]}")
    return StepCost.from_json(json.loads(done.stdout.splitlines()[-1]))


def _row(head: str, answer: StepCost) -> HeadCost:
    """A head's costs in milliseconds and MB, with those of the whole step; None for what was not measured."""
    return HeadCost(
        head=head,
        forward_ms=_sum(answer.backbone_forward_ms, answer.head_forward_ms),
        backward_ms=_sum(answer.head_backward_ms, answer.backbone_backward_ms),
        head_forward_ms=answer.head_forward_ms,
        head_backward_ms=answer.head_backward_ms,
        # A peak that was not reached says nothing.
        peak_mb=None if answer.note else answer.peak_mb,
        steps=answer.steps,
        note=answer.note,
    )


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
