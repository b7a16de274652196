"""Tables of what heads cost."""

from collections.abc import Sequence

from guided_collapse.report.accuracy_table import Record
from guided_collapse.report.cost import CostRecord
from guided_collapse.report.looks import in_order
from guided_collapse.report.numbers import figure
from guided_collapse.report.paper_figures import paper_memory
from guided_collapse.report.table import NOTHING, Cell, Table, words


def cost_table(costs: Sequence[CostRecord]) -> Table | None:
    """Forward and backward time and peak memory, head by head; None if there are no records of costs."""
    rows = [(cost, row) for cost in costs for row in cost.rows]
    if not rows:
        return None
    return Table(
        name="cost",
        title="Time of one step of a head in milliseconds, and peak memory in MB",
        stub=2,
        columns=("experiment", "head", "forward (ms)", "backward (ms)", "peak (MB)", "note"),
        rows=tuple(
            (
                words(cost.experiment),
                words(row.head),
                _cell(row.forward_ms),
                _cell(row.backward_ms),
                _cell(row.peak_mb),
                words(row.note or ""),
            )
            for cost, row in rows
        ),
        records=tuple(
            {
                "experiment": cost.experiment,
                "head": row.head,
                "forward_ms": row.forward_ms,
                "backward_ms": row.backward_ms,
                "peak_mb": row.peak_mb,
                "note": row.note,
            }
            for cost, row in rows
        ),
        notes=tuple(dict.fromkeys(f"{cost.experiment}: on {_machine(cost)}." for cost in costs)),
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
            "ours: as measured by guided-collapse cost. paper: GPU memory during training, as printed in Guiding Neural Collapse.",
            *dict.fromkeys(f"{cost.experiment}: on {_machine(cost)}." for cost in measured),
        ),
    )


def _record(experiment: str, source: str, head: str, peak_mb: float | None) -> Record:
    return {"experiment": experiment, "source": source, "head": head, "peak_mb": peak_mb}


def _memory(value: float | None, unit: str) -> Cell:
    return words(NOTHING if value is None else f"{figure(value)} {unit}")


def _cell(value: float | None) -> Cell:
    return words(NOTHING if value is None else figure(value))


def _machine(cost: CostRecord) -> str:
    known = [f"{name} {value}" for name, value in cost.hardware.items()]
    return ", ".join(known) or "unknown hardware"
