"""What the heads cost in an experiment: time of a step and peak memory, beside the paper's own route where it fits."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from guided_collapse.profiling.request import CostRequest
from guided_collapse.profiling.step_cost import PAPER_ROUTE, StepCostRequest
from guided_collapse.records.files import write_json
from guided_collapse.records.schema import COST, CostRecord, HeadCost, StepCost
from guided_collapse.training.environment import commit, versions
from guided_collapse.training.launch import check_device
from guided_collapse.training.settings.configuration import Configuration


def measure_cost(configuration: Configuration, request: CostRequest) -> Path:
    """Measures every head, each in a process of its own, and writes `cost.json` into the experiment's folder.

    Args:
        configuration: the experiment.
        request: what to measure.

    Returns:
        The file.

    Raises:
        ValueError: for a batch size that the experiment cannot have, or a device that is not there or lacks the precision.
        OSError: for a folder that cannot be written, before anything is measured.
        RuntimeError: if no head could be measured.
    """
    check_device(request.accelerator, request.precision)
    if request.batch_size is not None:
        configuration = replace(configuration, batch_size=request.batch_size)
    configuration = replace(configuration, precision=request.precision).resolved()
    file = request.out / configuration.experiment / COST
    file.parent.mkdir(parents=True, exist_ok=True)
    heads: Sequence[str] = [*dict.fromkeys(request.heads), *([PAPER_ROUTE] if request.paper_route else [])]
    answers: dict[str, StepCost] = {}
    for head in heads:
        print(f"{configuration.experiment} {head}: measuring, at most {request.limit_seconds:g} s", file=sys.stderr, flush=True)
        answers[head] = _measured(configuration, head, request)
        # After each head, so that an interruption loses none.
        write_json(file, _record(configuration, answers).to_json())
    failures = [answer.note for answer in answers.values() if answer.failed]
    if len(failures) == len(answers):
        raise RuntimeError(f"no head could be measured: {failures[0]}")
    return file


def _record(configuration: Configuration, answers: Mapping[str, StepCost]) -> CostRecord:
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
    command = [sys.executable, "-m", "guided_collapse.profiling.step_cost"]
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
