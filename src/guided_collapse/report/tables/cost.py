"""Tables of what heads cost."""

from collections.abc import Sequence

from guided_collapse.records.schema import CostRecord
from guided_collapse.report.facts import listed
from guided_collapse.report.looks import in_order
from guided_collapse.report.published_results import paper_memory
from guided_collapse.report.tables.accuracy import Record
from guided_collapse.report.tables.numbers import amount, figure
from guided_collapse.report.tables.table import NOTHING, Cell, Table, words

COLUMNS = {
    "forward_ms": "forward (ms)",
    "backward_ms": "backward (ms)",
    "head_forward_ms": "head forward (ms)",
    "head_backward_ms": "head backward (ms)",
    "peak_mb": "peak (MB)",
}


def cost_table(costs: Sequence[CostRecord]) -> Table | None:
    """Forward and backward time and peak memory, head by head; None if there are no records of costs."""
    rows = [(cost, row) for cost in costs for row in cost.rows]
    if not rows:
        return None
    return Table(
        name="cost",
        title="Time of a training step in milliseconds, of it the head and the loss alone, and peak memory in MB",
        stub=2,
        columns=("experiment", "head", *COLUMNS.values(), "note"),
        rows=tuple(
            (words(cost.experiment), words(row.head), *(_cell(getattr(row, name)) for name in COLUMNS), words(row.note or ""))
            for cost, row in rows
        ),
        records=tuple(
            {
                "experiment": cost.experiment,
                "head": row.head,
                **{name: getattr(row, name) for name in COLUMNS},
                "note": row.note,
            }
            for cost, row in rows
        ),
        notes=_circumstances(costs),
    )


def memory_table(costs: Sequence[CostRecord]) -> Table | None:
    """Peak memory by head, with the GPU memory that the paper prints beside it; None if no memory was measured."""
    measured = [cost for cost in costs if any(row.peak_mb is not None for row in cost.rows)]
    if not measured:
        return None
    papers = {cost.experiment: paper_memory(cost.experiment) for cost in measured}
    heads = in_order([row.head for cost in measured for row in cost.rows] + [head for paper in papers.values() for head in paper])
    rows: list[tuple[Cell, ...]] = []
    records: list[Record] = []
    for cost in measured:
        ours = {row.head: row.peak_mb for row in cost.rows}
        rows.append((words(cost.experiment), words("ours"), *(_memory(ours.get(head), "MB") for head in heads)))
        records += [_record(cost.experiment, "ours", head, peak) for head, peak in ours.items()]
        paper = papers.pop(cost.experiment, {})
        if paper:
            rows.append((words(cost.experiment), words("paper"), *(_memory(paper.get(head), "GB") for head in heads)))
            records += [_record(cost.experiment, "paper", head, gb and 1000 * gb) for head, gb in paper.items()]
    return Table(
        name="memory",
        title="Peak memory",
        stub=2,
        columns=("experiment", "source", *heads),
        rows=tuple(rows),
        records=tuple(records),
        notes=(
            "ours: what a training step adds to the memory of its process at the peak, as measured by guided-collapse cost. "
            "paper: GPU memory during training, as printed in Guiding Neural Collapse.",
            *_circumstances(measured),
        ),
    )


def _record(experiment: str, source: str, head: str, peak_mb: float | None) -> Record:
    return {"experiment": experiment, "source": source, "head": head, "peak_mb": peak_mb}


def _memory(value: float | None, unit: str) -> Cell:
    return words(NOTHING if value is None else f"{figure(value)} {unit}")


def _cell(value: float | None) -> Cell:
    return words(NOTHING if value is None else amount(value))


def _circumstances(costs: Sequence[CostRecord]) -> tuple[str, ...]:
    """What was measured on what, a line for each experiment."""
    return tuple(dict.fromkeys(f"{cost.experiment}: {listed(cost.conditions)}; on {listed(cost.hardware)}." for cost in costs))
