"""Tables of the records of `benchmarks.cost`; the functions take loaded JSON objects."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from guided_collapse.experiments.heads import HEADS

Cost = Mapping[str, Any]
"""One record, as loaded from its JSON file."""

NOTHING = "-"
TIMES = {
    "forward_ms": "forward (ms)",
    "backward_ms": "backward (ms)",
    "head_forward_ms": "head only, forward (ms)",
    "head_backward_ms": "head only, backward (ms)",
    "peak_mb": "peak (MB)",
}
# Heading and unit of each count.
COUNTS = {
    "operations": ("operations", 1),
    "waits": ("host waits", 1),
    "double_precision": ("float64 operations", 1),
    "factorizations": ("factorizations", 1),
    "work": ("GFLOP", 1e9),
    "moved_bytes": ("MB moved", 1e6),
}
# GPU memory during training in GB: Markou, Ajanthan, Gould, Guiding Neural Collapse, NeurIPS 2024, table 3.
PAPER_HEADS = ("cosine", "fixed-etf", "nearest-etf-detached", "nearest-etf")
PAPER_MEMORY: Mapping[str, tuple[float, float, float, float | None]] = {
    "ufm-10": (1.5, 1.5, 1.5, 1.6),
    "ufm-100": (1.7, 1.7, 1.7, 10.7),
    "ufm-200": (1.7, 1.7, 1.8, 70.3),
    "ufm-1000": (1.9, 1.9, 2.9, None),
    "cifar10-resnet18": (2.2, 2.2, 2.2, 2.3),
    "cifar10-resnet50": (2.6, 2.6, 2.7, 2.8),
    "cifar100-resnet50": (2.6, 2.6, 2.7, 18.9),
    "imagenet-resnet50": (27.5, 27.2, 27.8, None),
}


class CostTable(NamedTuple):
    """A text table with headings, a title above and notes below."""

    name: str
    title: str
    cells: pd.DataFrame
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.title, "", self.cells.to_string(index=False), "", *self.notes, ""])


def cost_table(costs: Sequence[Cost]) -> CostTable:
    """Returns a table of forward and backward time and peak memory, head by head."""
    rows = [
        {
            "experiment": cost["experiment"],
            "head": row["head"],
            **{heading: _amount(row[name]) for name, heading in TIMES.items()},
            "note": row["note"] or "",
        }
        for cost in costs
        for row in cost["rows"]
    ]
    title = "Cost of a training step: time in all, time for head and loss only, and peak memory"
    return CostTable("cost", title, pd.DataFrame(rows), _circumstances(costs))


def memory_table(costs: Sequence[Cost]) -> CostTable:
    """Returns a table of peak memory by head, next to the GPU memory that the paper reports."""
    measured = [cost for cost in costs if any(row["peak_mb"] is not None for row in cost["rows"])]
    found = [
        (cost["experiment"], source, unit, values)
        for cost in measured
        for source, unit, values in (
            ("ours", "MB", {row["head"]: row["peak_mb"] for row in cost["rows"]}),
            ("paper", "GB", dict(zip(PAPER_HEADS, PAPER_MEMORY.get(cost["experiment"], ()), strict=False))),
        )
        if values
    ]
    heads = [head for head in (*HEADS, "paper-route") if any(head in values for *_, values in found)]
    rows = [
        {
            "experiment": experiment,
            "source": source,
            **{head: NOTHING if values.get(head) is None else f"{values[head]:.4g} {unit}" for head in heads},
        }
        for experiment, source, unit, values in found
    ]
    sources = (
        "ours: what a training step adds to the memory of its process at the peak, as measured by benchmarks/cost.py. "
        "paper: GPU memory during training, as printed in Guiding Neural Collapse."
    )
    return CostTable("memory", "Peak memory", pd.DataFrame(rows), (sources, *_circumstances(measured)))


def counts_table(costs: Sequence[Cost]) -> CostTable:
    """Returns a table of operation counts by head and kind of device, with lower bounds on the time if records have peak rates."""
    bounded = any(cost.get("peaks") for cost in costs)
    rows = []
    for cost in costs:
        for counts in cost.get("counts", ()):
            row = {"experiment": cost["experiment"], "head": counts["head"], "device": counts["device_kind"]}
            row["solver"] = counts["solver"] or NOTHING
            for name, (heading, unit) in COUNTS.items():
                row[heading] = str(counts[name]) if unit == 1 else f"{counts[name] / unit:.4g}"
            if bounded:
                least = least_ms(cost, counts)
                row["lower bound (ms)"] = NOTHING if least is None else f"{least:.4g}"
            rows.append(row)
    meaning = (
        "Counted, not timed: one step of head and loss, forward and backward, in float32, on a CPU and on any other device. "
        "GFLOP are those of matrix products, without the work inside factorizations; MB moved are what operations read and write "
        "if nothing is fused."
    )
    bounds = [
        f"{cost['experiment']}: the lower bound is the least time for this work, with every operation from memory to memory, "
        f"at {peaks['float32_tflops']:g} TFLOP/s and {peaks['memory_gbs']:g} GB/s, the peak rates of "
        f"{peaks.get('device_name') or 'the device'} ({peaks['source']}). It is not a measured time: it excludes the launch of "
        "operations and whatever else keeps a device from its peak."
        for cost in costs
        if (peaks := cost.get("peaks"))
    ]
    sizes = [
        f"{cost['experiment']}: {_listed(cost, 'batch_size', 'feature_dim', 'num_classes')}."
        for cost in costs
        if cost.get("counts")
    ]
    title = "What head and loss ask of a device in a training step"
    return CostTable("counts", title, pd.DataFrame(rows), (meaning, *bounds, *sizes))


def least_ms(cost: Cost, counts: Mapping[str, Any]) -> float | None:
    """Returns the least time in milliseconds of the counted work at the recorded peak rates; None without them or for a CPU."""
    peaks = cost.get("peaks")
    if not peaks or counts["device_kind"] == "cpu":
        return None
    return 1e3 * max(counts["work"] / (1e12 * peaks["float32_tflops"]), counts["moved_bytes"] / (1e9 * peaks["memory_gbs"]))


def _amount(value: float | None) -> str:
    """Returns a number of milliseconds or megabytes as text, without decimals from a thousand on."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _circumstances(costs: Sequence[Cost]) -> tuple[str, ...]:
    """Returns what was measured and on which machine, one line per experiment."""
    fields = ("batch_size", "feature_dim", "num_classes", "precision")
    return tuple(f"{cost['experiment']}: {_listed(cost, *fields)}; on {_listed(cost['hardware'])}." for cost in costs)


def _listed(entries: Mapping[str, Any], *names: str) -> str:
    found = {name: entries[name] for name in names or entries if entries.get(name) is not None}
    return ", ".join(f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in found.items())
