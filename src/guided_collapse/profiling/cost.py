"""What the heads cost in an experiment: time of a step and peak memory, beside the paper's own route where it fits."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from guided_collapse.profiling.request import CostRequest
from guided_collapse.profiling.step_cost import PAPER_ROUTE, PARTS
from guided_collapse.records.files import write_json
from guided_collapse.records.names import COST, FORMAT
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
    answers: dict[str, dict[str, Any]] = {}
    for head in heads:
        print(f"{configuration.experiment} {head}: measuring, at most {request.limit_seconds:g} s", file=sys.stderr, flush=True)
        answers[head] = _measured(configuration, head, request)
        # After each head, so that an interruption loses none.
        write_json(file, _record(configuration, answers))
    failures = [answer["note"] for answer in answers.values() if answer.get("failed")]
    if len(failures) == len(answers):
        raise RuntimeError(f"no head could be measured: {failures[0]}")
    return file


def _record(configuration: Configuration, answers: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
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
