"""What a training step of each head asks of a device, in a table."""

from collections.abc import Sequence

from guided_collapse.experiments.records.schema import CostRecord, HeadCounts
from guided_collapse.experiments.report.experiment import listed
from guided_collapse.experiments.report.tables.table import NOTHING, Cell, CsvRow, Table, number_text, words

HEADINGS = dict(
    zip(
        HeadCounts.COUNTED,
        ("operations", "host waits", "float64 operations", "factorizations", "GFLOP", "MB moved"),
        strict=True,
    )
)
UNITS = {"GFLOP": 1e9, "MB moved": 1e6}
LEAST = "lower bound (ms)"
MEANING = (
    "Counted, not timed: one step of head and loss, forward and backward, in float32, as a CPU does it and any other device. "
    "GFLOP are those of matrix products, without what factorizations do inside; MB moved are what operations read and write if "
    "nothing is fused."
)


def counts_table(costs: Sequence[CostRecord]) -> Table | None:
    """Operations, waits, work and bytes of a step, by head and kind of device; None if nothing was counted."""
    rows = [(cost, counts) for cost in costs for counts in cost.counts]
    if not rows:
        return None
    bounded = any(cost.peaks is not None for cost in costs)
    return Table(
        name="counts",
        title="What head and loss ask of a device in a training step",
        stub=4,
        columns=("experiment", "head", "device", "solver", *HEADINGS.values(), *([LEAST] if bounded else [])),
        rows=tuple(
            (
                *map(words, (cost.experiment, counts.head, counts.device_kind, counts.solver or NOTHING)),
                *(_cell(getattr(counts, name), heading) for name, heading in HEADINGS.items()),
                *([_least_cell(_least_ms(cost, counts))] if bounded else []),
            )
            for cost, counts in rows
        ),
        csv_rows=tuple(_csv_row(cost, counts) for cost, counts in rows),
        notes=(MEANING, *_bounds(costs), *_sizes(costs)),
    )


def _least_ms(cost: CostRecord, counts: HeadCounts) -> float | None:
    """The bound for what an accelerator does; the rates are not those of a CPU."""
    return cost.peaks.least_ms(counts) if cost.peaks is not None and counts.device_kind != "cpu" else None


def _csv_row(cost: CostRecord, counts: HeadCounts) -> CsvRow:
    return {"experiment": cost.experiment, **counts.to_json(), "least_ms": _least_ms(cost, counts)}


def _cell(value: int, heading: str) -> Cell:
    return words(number_text(value / UNITS[heading]) if heading in UNITS else str(value))


def _least_cell(value: float | None) -> Cell:
    return words(NOTHING if value is None else number_text(value))


def _bounds(costs: Sequence[CostRecord]) -> tuple[str, ...]:
    """What the bounds rest on, a line for each experiment that has them."""
    return tuple(
        f"{cost.experiment}: the lower bound is the time below which this work, every operation from memory to memory, cannot be "
        f"done at {cost.peaks.float32_tflops:g} TFLOP/s and {cost.peaks.memory_gbs:g} GB/s, the peak rates of "
        f"{cost.peaks.device_name or 'the device'} ({cost.peaks.source}). It is not a measured time: the launch of operations, and "
        "all else that keeps a device from its peak, come on top."
        for cost in costs
        if cost.peaks is not None
    )


def _sizes(costs: Sequence[CostRecord]) -> tuple[str, ...]:
    sizes = ("batch_size", "feature_dim", "num_classes")
    return tuple(
        f"{cost.experiment}: {listed({name: value for name, value in cost.conditions.items() if name in sizes})}."
        for cost in costs
        if cost.counts
    )
