"""What the heads cost in an experiment: time of a step and peak memory, beside the paper's own route where it fits.

Each head is measured by `step_cost` in a process of its own. Here nothing needs torch before a request is understood.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guided_collapse.errors import RequestError, WorkError, requested
from guided_collapse.records.files import write_json
from guided_collapse.records.names import COST, FORMAT
from guided_collapse.training.settings.checks import COUNT, POSITIVE_COUNT, Range, at_least, check_ranges
from guided_collapse.training.settings.configuration import Configuration, HeadName, Precision
from guided_collapse.training.settings.placement import Accelerator

PAPER_ROUTE = "paper-route"
"""The name of the implicit head as the paper computes it, beside those of the heads."""
PARTS = ("backbone_forward_ms", "head_forward_ms", "head_backward_ms", "backbone_backward_ms")
"""Of a training step, in the order in which they come."""


@dataclass(frozen=True)
class CostRequest:
    """Measure time and memory of a training step for each head, on random inputs of the experiment's shape."""

    heads: tuple[HeadName, ...] = ("standard", "fixed", "implicit", "implicit-detached", "implicit-lagged")
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
    out: Path = Path("runs")
    """Output folder."""

    def __post_init__(self) -> None:
        check_ranges(self, _COST_RANGES)
        if not self.heads and not self.paper_route:
            raise RequestError("cost needs at least one head; got none. Give --heads, or leave --no-paper-route out.")


_COST_RANGES: Mapping[str, Range] = {
    "steps": at_least(1),
    "warm_up": COUNT,
    "batch_size": POSITIVE_COUNT,
    "limit_seconds": Range("positive and at most a day", 1e-3, 86400.0),
}


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
    from guided_collapse.training.launch import check_device  # here, because it takes torch

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
    answers: dict[str, dict[str, Any]] = {}
    for head in heads:
        print(f"{configuration.experiment} {head}: measuring, at most {request.limit_seconds:g} s", file=sys.stderr, flush=True)
        answers[head] = _measured(configuration, head, request)
        # After each head, so that an interruption loses none.
        write_json(file, _record(configuration, answers))
    failures = [answer["note"] for answer in answers.values() if answer.get("failed")]
    if len(failures) == len(answers):
        raise WorkError(f"no head could be measured: {failures[0]}")
    return file


def _record(configuration: Configuration, answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    from guided_collapse.training.environment import commit, versions  # here, because it takes torch

    known: dict[str, Any] = next((answer for answer in answers.values() if "hardware" in answer), {})
    return {
        "format": FORMAT,
        "kind": "cost",
        "experiment": configuration.experiment,
        "rows": [_row(head, answer) for head, answer in answers.items()],
        "batch_size": configuration.batch_size,
        "precision": configuration.precision,
        "feature_dim": known.get("feature_dim"),
        "num_classes": known.get("num_classes"),
        "versions": versions(),
        "commit": commit(),
        "hardware": known.get("hardware", {}),
    }


def _measured(configuration: Configuration, head: str, request: CostRequest) -> dict[str, Any]:
    asked = {
        "configuration": configuration.to_dict(),
        "head": head,
        "steps": request.steps,
        "warm_up": request.warm_up,
        "seconds": request.limit_seconds / 2,
        "accelerator": request.accelerator,
    }
    command = [sys.executable, "-m", "guided_collapse.profiling.step_cost"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=request.limit_seconds
        )
    except subprocess.TimeoutExpired:
        return {"note": f"not one step done after {request.limit_seconds:.0f} s"}
    if done.returncode < 0:
        return {"note": f"its process was killed by signal {-done.returncode}, probably for want of memory"}
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        return {"failed": True, "note": f"failed: {said[-1]}"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _row(head: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A head's costs in milliseconds and MB, with those of the whole step; None for what was not measured."""
    parts = {name: answer.get(name) for name in PARTS}
    return {
        "head": head,
        "forward_ms": _sum(parts["backbone_forward_ms"], parts["head_forward_ms"]),
        "backward_ms": _sum(parts["head_backward_ms"], parts["backbone_backward_ms"]),
        "head_forward_ms": parts["head_forward_ms"],
        "head_backward_ms": parts["head_backward_ms"],
        # A peak that was not reached says nothing.
        "peak_mb": None if answer.get("note") else answer.get("peak_mb"),
        "steps": answer.get("steps"),
        "note": answer.get("note"),
    }


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
