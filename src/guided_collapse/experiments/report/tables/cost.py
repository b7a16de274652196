"""What heads cost: in the notation of the paper, and in tables."""

from collections.abc import Sequence
from typing import NamedTuple

from guided_collapse.experiments.records.schema import CostRecord, HeadCost
from guided_collapse.experiments.report.experiment import listed
from guided_collapse.experiments.report.published_results import paper_memory
from guided_collapse.experiments.report.styles import in_order, label, letter
from guided_collapse.experiments.report.tables.table import NOTHING, Cell, CsvRow, Table, amount, number_text, words

HEADINGS = dict(
    zip(
        HeadCost.MEASURED,
        ("forward (ms)", "backward (ms)", "head only, forward (ms)", "head only, backward (ms)", "peak (MB)"),
        strict=True,
    )
)
*_, PEAK = HEADINGS


class TimedPass(NamedTuple):
    """The time of one pass in the paper's notation: S/F is the forward pass of the standard head."""

    notation: str
    head: str
    backward: bool
    milliseconds: float


def timed_passes(cost: CostRecord) -> list[TimedPass]:
    """Every pass that was timed, forward and backward, head by head."""
    found = []
    for row in cost.rows:
        for backward, milliseconds in ((False, row.forward_ms), (True, row.backward_ms)):
            if milliseconds:
                found.append(TimedPass(f"{letter(row.head)}/{'B' if backward else 'F'}", row.head, backward, milliseconds))
    return found


def notation(cost: CostRecord) -> list[str]:
    """What the letters of the heads stand for."""
    return [f"{letter(row.head)} = {label(row.head)}" for row in cost.rows if letter(row.head) != row.head]


def cost_table(costs: Sequence[CostRecord]) -> Table | None:
    """Forward and backward time and peak memory, head by head; None if no costs were recorded."""
    rows = [(cost, row) for cost in costs for row in cost.rows]
    if not rows:
        return None
    return Table(
        name="cost",
        title="Cost of a training step: time in all, time for head and loss only, and peak memory",
        stub=2,
        columns=("experiment", "head", *HEADINGS.values(), "note"),
        rows=tuple(
            (words(cost.experiment), words(row.head), *(_cell(getattr(row, name)) for name in HEADINGS), words(row.note or ""))
            for cost, row in rows
        ),
        csv_rows=tuple(
            {
                "experiment": cost.experiment,
                "head": row.head,
                **{name: getattr(row, name) for name in HEADINGS},
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
    csv_rows: list[CsvRow] = []
    for cost in measured:
        ours = {row.head: row.peak_mb for row in cost.rows}
        rows.append((words(cost.experiment), words("ours"), *(_memory(ours.get(head), "MB") for head in heads)))
        csv_rows += [_memory_row(cost.experiment, "ours", head, peak) for head, peak in ours.items()]
        paper = papers.pop(cost.experiment, {})
        if paper:
            rows.append((words(cost.experiment), words("paper"), *(_memory(paper.get(head), "GB") for head in heads)))
            csv_rows += [_memory_row(cost.experiment, "paper", head, gb and 1000 * gb) for head, gb in paper.items()]
    sources = (
        "ours: what a training step adds to the memory of its process at the peak, as measured by guided-collapse cost. "
        "paper: GPU memory during training, as printed in Guiding Neural Collapse."
    )
    columns = ("experiment", "source", *heads)
    notes = (sources, *_circumstances(measured))
    return Table("memory", "Peak memory", 2, columns, tuple(rows), tuple(csv_rows), notes=notes)


def _memory_row(experiment: str, source: str, head: str, peak_mb: float | None) -> CsvRow:
    return {"experiment": experiment, "source": source, "head": head, PEAK: peak_mb}


def _memory(value: float | None, unit: str) -> Cell:
    return words(NOTHING if value is None else f"{number_text(value)} {unit}")


def _cell(value: float | None) -> Cell:
    return words(NOTHING if value is None else amount(value))


def _circumstances(costs: Sequence[CostRecord]) -> tuple[str, ...]:
    """What was measured on what, a line for each experiment."""
    return tuple(dict.fromkeys(f"{cost.experiment}: {listed(cost.conditions)}; on {listed(cost.hardware)}." for cost in costs))
