"""What each part of the page shows; the templates say how."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from guided_collapse.experiments.records.declared.quantities import QUANTITIES
from guided_collapse.experiments.records.reading import Records
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.schema import CostRecord
from guided_collapse.experiments.records.text import shortened
from guided_collapse.experiments.report.experiment import Experiment, Machine, configuration_rows, machines, protocols, span
from guided_collapse.experiments.report.page.animation import Animation, animation_table
from guided_collapse.experiments.report.page.panels import Panel
from guided_collapse.experiments.report.styles import HeadStyle, label
from guided_collapse.experiments.report.tables.cost import TimedPass, notation, timed_passes
from guided_collapse.experiments.report.tables.outcome import outcome, outcome_table
from guided_collapse.experiments.report.tables.pairs import pairs_table
from guided_collapse.experiments.report.tables.reaching import reaching_table
from guided_collapse.experiments.report.tables.summary import final_table
from guided_collapse.experiments.report.tables.table import Table, amount, words

NARROWEST = 4.0  # per cent of the width, so that the shortest bar can be seen


class ShownTable(NamedTuple):
    """A table, and how many of its columns at the left are left out."""

    table: Table
    without: int


@dataclass(frozen=True)
class ExperimentSection:
    """One experiment.

    Attributes:
        name: its name.
        results: how well each head does, and which is ahead of which.
        panels: its curves, by their number.
        main: the number of the panel that stands beside the results; None if it was not measured.
        animations: of the collapse, a run for each head.
        animation_numbers: the same as a table.
        protocol: in words.
        missing: titles of what was not measured.
        tables: without the name of the experiment in the first column.
        differences: names and values of settings in which runs differ.
        shared: those in which they do not.
    """

    name: str
    results: tuple[ShownTable, ...]
    panels: Mapping[int, Panel]
    main: int | None
    animations: Sequence[Animation]
    animation_numbers: Table
    protocol: str
    missing: tuple[str, ...]
    tables: tuple[Table, ...]
    differences: tuple[tuple[str, str], ...]
    shared: tuple[tuple[str, str], ...]


def experiment_section(experiment: Experiment, panels: Sequence[Panel], animations: Sequence[Animation]) -> ExperimentSection:
    """The part of the page that shows one experiment."""
    titles = [panel.title for panel in panels]
    main = outcome(experiment).quantity.title
    results = (outcome_table(experiment), 0), (pairs_table([experiment]), 1)
    tables = final_table([experiment]), reaching_table([experiment], "epochs"), reaching_table([experiment], "seconds")
    settings = configuration_rows(experiment)
    measurable = [
        quantity.title for quantity in QUANTITIES if (quantity.split == "train" or experiment.has_test) and not quantity.occasional
    ]
    return ExperimentSection(
        name=experiment.name,
        results=tuple(ShownTable(table, without) for table, without in results if table is not None),
        panels=dict(enumerate(panels)),
        main=titles.index(main) if main in titles else None,
        animations=animations,
        animation_numbers=animation_table(animations),
        protocol="; ".join(protocols(experiment)),
        missing=tuple(title for title in measurable if title not in titles),
        tables=tuple(table for table in tables if table is not None),
        differences=tuple((row.name, row.value) for row in settings if row.differs),
        shared=tuple((row.name, row.value) for row in settings if not row.differs),
    )


class Bar(NamedTuple):
    """The time of a pass: whose, which, how wide the bar is in per cent, and in words."""

    style: int
    notation: str
    said: str
    direction: str
    width: float
    time: str


class CostChart(NamedTuple):
    """The bars of one experiment, and what their letters stand for."""

    experiment: str
    bars: tuple[Bar, ...]
    key: str


def cost_chart(cost: CostRecord, styles: Mapping[str, HeadStyle]) -> CostChart:
    """Forward and backward times in the paper's notation, on a logarithmic scale."""
    found = timed_passes(cost)
    logarithms = [math.log10(timed.milliseconds) for timed in found]
    lowest, reach = min(logarithms), max(max(logarithms) - min(logarithms), 1e-9)
    order = list(styles)

    def bar(timed: TimedPass) -> Bar:
        direction = "backward" if timed.backward else "forward"
        width = NARROWEST + (100 - NARROWEST) * (math.log10(timed.milliseconds) - lowest) / reach
        said = f"{label(timed.head)}, {direction}"
        return Bar(order.index(timed.head), timed.notation, said, direction, width, f"{amount(timed.milliseconds)} ms")

    return CostChart(cost.experiment, tuple(map(bar, found)), "; ".join(notation(cost)))


class Tile(NamedTuple):
    """A number that is to be seen at once."""

    number: int
    name: str
    bad: bool


@dataclass(frozen=True)
class RunsSection:
    """The end of the page: counts, everything that failed or is unfinished or could not be read, the runs and the machines.

    Attributes:
        exceptions: counts of runs that do not count in full, for the top of the page.
        tiles: all counts.
        problems: what went wrong, in words.
        experiments: what was run.
        machines: on what.
        tables: of the runs.
    """

    exceptions: tuple[str, ...]
    tiles: tuple[Tile, ...]
    problems: tuple[str, ...]
    experiments: Table
    machines: Sequence[Machine]
    tables: tuple[Table, ...]


def runs_section(records: Records, experiments: Sequence[Experiment], tables: Iterable[Table]) -> RunsSection:
    """What was run, on what, and what went wrong."""
    states = [run.state for run in records.runs]
    failed, unfinished, skipped = states.count("failed"), states.count("unfinished"), len(records.skipped)
    exceptions = {"failed": failed, "unfinished": unfinished, "could not be read": skipped}
    return RunsSection(
        exceptions=tuple(f"{count} {name}" for name, count in exceptions.items() if count),
        tiles=(
            Tile(len(experiments), "experiment" if len(experiments) == 1 else "experiments", False),
            Tile(len(states), "run" if len(states) == 1 else "runs", False),
            Tile(states.count("finished"), "finished", False),
            Tile(unfinished, "unfinished", False),
            Tile(failed, "failed", failed > 0),
            Tile(skipped, "records left out", skipped > 0),
        ),
        problems=tuple(_problems(records)),
        experiments=_experiments_table(experiments),
        machines=machines(records.runs),
        tables=tuple(tables),
    )


def _problems(records: Records) -> Iterable[str]:
    for run in records.runs:
        if run.state == "failed":
            yield f"{_name(run)} failed: {shortened(run.error or 'no reason recorded')}"
    for run in records.runs:
        if run.state == "unfinished":
            yield f"{_name(run)} is unfinished: {_progress(run)}"
    for message in records.skipped:
        yield f"Left out: {message}"


def _experiments_table(experiments: Sequence[Experiment]) -> Table:
    rows = []
    for experiment in experiments:
        runs = experiment.runs
        values = [
            experiment.name,
            ", ".join(experiment.heads),
            ", ".join(map(str, sorted({run.seed for run in runs}))),
            span([run.epochs.last for run in runs]),
            ", ".join(dict.fromkeys(run.protocol for run in runs)),
            span([run.num_classes for run in runs]),
            span([run.feature_dim for run in runs]),
            span([run.num_train for run in runs]),
            span([run.num_test for run in runs]),
            span([run.global_batch for run in runs]),
        ]
        rows.append(tuple(map(words, values)))
    columns = ("experiment", "heads", "seeds", "epochs", "protocol", "classes", "features", "train", "test", "global batch")
    return Table("experiments", "Experiments", 1, columns, tuple(rows), ())


def _name(run: Run) -> str:
    return f"{run.experiment}, {run.head}, seed {run.seed}"


def _progress(run: Run) -> str:
    return f"{run.epochs.last} epochs" if run.planned is None else f"{run.epochs.last} of {run.planned} epochs"
