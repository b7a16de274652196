"""Heads against each other on the same seeds."""

from collections.abc import Sequence

import numpy as np

from guided_collapse.experiments.records.declared.quantities import TEST_TOP1
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.report.summaries import spread
from guided_collapse.experiments.report.tables.table import NOTHING, Cell, CsvRow, Table, spread_fields, words


def pairs_table(experiments: Sequence[Experiment]) -> Table | None:
    """How much better a head is than another in test accuracy, seed by seed; None if no two heads share two seeds.

    Heads of a seed start from the same network and see the same batches. What they owe to that falls out of the difference, which
    tells them apart where their medians and ranges do not.
    """
    heads = in_order(head for experiment in experiments if experiment.has_test for head in experiment.heads)
    rows: list[tuple[Cell, ...]] = []
    csv_rows: list[CsvRow] = []
    for experiment in experiments:
        for number, head in enumerate(heads):
            found = {other: _differences(experiment, head, other) for other in heads[:number]}
            if any(len(differences) > 1 for differences in found.values()):
                rows.append((words(experiment.name), words(head), *(_cell(found.get(other, [])) for other in heads[:-1])))
                csv_rows += [
                    {"experiment": experiment.name, "head": head, "against": other, **_difference_fields(differences)}
                    for other, differences in found.items()
                    if differences
                ]
    if not rows:
        return None
    return Table(
        name="pairs",
        title="Differences between heads on the same seeds, in points of test accuracy",
        stub=2,
        columns=("experiment", "head", *(f"ahead of {other}" for other in heads[:-1])),
        rows=tuple(rows),
        csv_rows=tuple(csv_rows),
        notes=(
            "Median and range at the last epoch that both runs of a seed have measured, and on how many seeds the row is ahead. "
            "Heads of a seed share the initial network and, unless the protocol is the paper's, the batches.",
        ),
    )


def _differences(experiment: Experiment, head: str, other: str) -> list[float]:
    """In points, one for each seed that both heads have measured."""
    others = {run.seed: run for run in experiment.of(other)}
    found = (_difference(run, others[run.seed]) for run in experiment.of(head) if run.seed in others)
    return [difference for difference in found if difference is not None]


def _difference(run: Run, other: Run) -> float | None:
    mine, theirs = _measured(run), _measured(other)
    both = mine.keys() & theirs.keys()
    return mine[max(both)] - theirs[max(both)] if both else None


def _measured(run: Run) -> dict[int, float]:
    """Test accuracy in per cent by epoch."""
    values = run.epochs.of(TEST_TOP1.split, TEST_TOP1.name) * TEST_TOP1.factor
    return {int(epoch): float(value) for epoch, value in zip(run.epochs.numbers, values, strict=True) if not np.isnan(value)}


def _ahead(differences: Sequence[float]) -> int:
    return sum(difference > 0 for difference in differences)


def _cell(differences: Sequence[float]) -> Cell:
    if not differences:
        return words(NOTHING)
    over = spread(differences)
    median, low, high = (f"{value:+.2f}" for value in (over.median, over.low, over.high))
    part = f", {_ahead(differences)} of {over.count}"
    return Cell(f"{median} ({low} to {high}){part}", rf"${median}\,^{{{high}}}_{{{low}}}${part}")


def _difference_fields(differences: Sequence[float]) -> CsvRow:
    return {**spread_fields(spread(differences)), "ahead": _ahead(differences)}
