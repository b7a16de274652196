"""The tables of a report."""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from pandas import DataFrame, MultiIndex, Series, read_csv

from guided_collapse.experiments import records
from guided_collapse.experiments.records import Run
from guided_collapse.experiments.report import summaries
from guided_collapse.experiments.report.formats import NOTHING, Table, number_text, short_text, spread_text
from guided_collapse.experiments.report.styles import in_order, label
from guided_collapse.experiments.report.summaries import (
    ABOVE_FLOOR,
    NEAR_THE_FLOOR,
    Experiment,
    Spread,
    at_epoch,
    floor,
    measured,
    outcome,
    seconds_of,
    span,
    spread,
)
from guided_collapse.experiments.report.verdict import Verdict

# The row headings of a cell, its column heading, its text, and its numbers in full precision.
Cell = tuple[tuple[str, ...], Any, str, Mapping[str, Any]]


def all_tables(
    experiments: Sequence[Experiment], epochs: Sequence[int], searches: Sequence[records.SearchRecord] = ()
) -> list[Table]:
    """Returns all tables that are not empty."""
    accuracies = [accuracy_table(experiments, quantity, epochs) for quantity in (records.TRAIN_TOP1, records.TEST_TOP1)]
    others = [pairs_table(experiments), *end_tables(experiments), search_table(searches), runs_table(experiments)]
    return [table for table in (*accuracies, *others) if len(table.cells)]


def end_tables(experiments: Sequence[Experiment]) -> list[Table]:
    """Returns the tables of the last measurements and of the epochs and seconds to reach each train accuracy."""
    return [final_table(experiments), reaching_table(experiments, "epochs"), reaching_table(experiments, "seconds")]


def accuracy_table(experiments: Sequence[Experiment], quantity: records.Quantity, epochs: Sequence[int]) -> Table:
    """Returns accuracies in the paper's layout: experiments as rows, heads by epoch as columns, published values below ours.

    A run without a measurement at an epoch contributes the last one before it; the cell says so.
    """
    entries: list[Cell] = []
    shown, best = [], set()
    for experiment in experiments:
        wanted = [(epoch, head) for epoch in epochs for head in experiment.heads]
        ours = {key: found for key in wanted if (found := at_epoch(experiment.of(key[1]), quantity, key[0]))}
        if not ours:
            continue
        shown.append(experiment)
        papers = {key: printed for key, printed in paper_accuracy(quantity.split, experiment.name).items() if key[0] in epochs}
        for source, (key, found) in (*(("ours", each) for each in ours.items()), *(("paper", each) for each in papers.items())):
            if source == "paper":
                text = f"{found.median:.2f} ({found.low:.1f} to {found.high:.1f})"
            else:
                at = "" if set(found.epochs) == {key[0]} else f" [epoch {span(found.epochs)}]"
                text = spread_text(found, percent=True) + at
                medians = [other.median for (epoch, _), other in ours.items() if epoch == key[0]]
                if len(medians) > 1 and found.median == max(medians):
                    best.add(((experiment.name, source), key))
            start = {"experiment": experiment.name, "source": source, "head": key[1], "epoch": key[0]}
            numbers = {**start, "measured_at": span(found.epochs), **_numbers(found)}
            entries.append(((experiment.name, source), key, text, numbers))
    heads = in_order(head for experiment in shown for head in experiment.heads)
    columns = [(epoch, head) for epoch in epochs for head in heads]
    rows = list(dict.fromkeys(row for row, *_ in entries))
    notes = ["Measured in eval mode on clean data. Bold: our highest median at an epoch."]
    if any("[epoch" in text for _, _, text, _ in entries):
        notes += ["[epoch n]: the last measurement before the column's epoch, where a run has none."]
    if any(source == "paper" for _, source in rows):
        notes += ["paper: as published by Markou, Ajanthan and Gould, Guiding Neural Collapse, NeurIPS 2024; five seeds."]
    title = f"Top-1 {quantity.split} accuracy in percent, median and range over seeds"
    table = _table(f"{quantity.split}-top1", title, ["experiment", "source"], columns, entries, [*notes, *seed_notes(shown)])
    headings = [("", "experiment"), ("", "source"), *((f"epoch {epoch}", head) for epoch, head in columns)]
    table.cells.columns = MultiIndex.from_tuples(headings)
    return table._replace(bold=frozenset((rows.index(row), 2 + columns.index(key)) for row, key in best))


def paper_accuracy(split: str, experiment: str) -> dict[tuple[int, str], Spread]:
    """Returns published values by epoch and head; on ImageNet, the paper's head omits the gradient through the solve."""
    with files("guided_collapse.experiments.report").joinpath("assets", "published.csv").open() as file:
        found = read_csv(file).query("split == @split and experiment == @experiment")
    return {(row.epoch, row.head): Spread(row.median, row.low, row.high, 5, (row.epoch,)) for row in found.itertuples()}


def pairs_table(experiments: Sequence[Experiment]) -> Table:
    """Returns a table of differences in test accuracy between heads on the same seeds, where heads share several seeds."""
    heads = in_order(head for experiment in experiments if experiment.has_test for head in experiment.heads)
    entries: list[Cell] = []
    for experiment, (place, head) in itertools.product(experiments, enumerate(heads)):
        gains = {other: found for other in heads[:place] if (found := _gains(experiment, head, other))}
        for other, found in gains.items() if any(len(found) > 1 for found in gains.values()) else ():
            over, ahead = spread(found), sum(gain > 0 for gain in found)
            text = f"{over.median:+.2f} ({over.low:+.2f} to {over.high:+.2f}), {ahead} of {over.seeds}"
            numbers = {"experiment": experiment.name, "head": head, "against": other, **_numbers(over), "ahead": ahead}
            entries.append(((experiment.name, head), f"ahead of {other}", text, numbers))
    note = (
        "Median and range at the last epoch that both runs of a seed measured, and the number of seeds on which the row is ahead. "
        "Heads with the same seed share the initial network and, unless the protocol is the paper's, the batches."
    )
    title = "Differences between heads on the same seeds, in points of test accuracy"
    return _table("pairs", title, ["experiment", "head"], [f"ahead of {other}" for other in heads[:-1]], entries, [note])


def _gains(experiment: Experiment, head: str, other: str) -> list[float]:
    """Returns how far `head` is ahead of `other` in points of test accuracy, on each seed that both have run."""
    others = {run.seed: measured(run, records.TEST_TOP1) for run in experiment.of(other)}
    shared = [run for run in experiment.of(head) if run.seed in others]
    gains = ((measured(run, records.TEST_TOP1) - others[run.seed]).dropna() for run in shared)
    return [float(gain.iat[-1]) for gain in gains if len(gain)]


def final_table(experiments: Sequence[Experiment]) -> Table:
    """Returns a table of every quantity at the last measurement of each run, with heads as columns."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    entries: list[Cell] = []
    notes = []
    for experiment in experiments:
        for quantity, head in itertools.product(records.QUANTITIES, heads):
            if end := at_epoch(experiment.of(head), quantity):
                start = {"experiment": experiment.name, "head": head, "split": quantity.split, "quantity": quantity.name}
                numbers = {**start, "measured_at": span(end.epochs), **_numbers(end)}
                entries.append(((experiment.name, quantity.title), head, spread_text(end, percent=quantity.percent), numbers))
        lasts = {head: [run.epochs.last for run in experiment.of(head) if run.epochs.last] for head in experiment.heads}
        if spans := {head: span(epochs) for head, epochs in lasts.items() if epochs}:
            notes.append(f"Last epoch in {experiment.name}: {_same_or_each(spans)}.")
    title = "The last measurement of each run, median and range over seeds"
    return _table("final", title, ["experiment", "quantity"], heads, entries, [*notes, *seed_notes(experiments)])


def reaching_table(experiments: Sequence[Experiment], unit: Literal["epochs", "seconds"]) -> Table:
    """Returns a table of the epochs or seconds until train accuracy reaches each level."""
    entries: list[Cell] = []
    for each, head in ((experiment, head) for experiment in experiments for head in experiment.heads):
        reached = {level: found for level in summaries.LEVELS if (found := summaries.when_reached(each.of(head), level))}
        for level, found in reached.items() if any(getattr(found, unit) for found in reached.values()) else ():
            over, seeds = getattr(found, unit), found.epochs.seeds
            text = spread_text(over) + ("" if found.reached == seeds else f", {found.reached} of {seeds}")
            # In the numbers, unknown times and events that never happened are both left empty.
            ends = {name: getattr(over, name, math.inf) for name in ("median", "low", "high")}
            known = {name: value if math.isfinite(value) else None for name, value in ends.items()}
            start = {"experiment": each.name, "head": head, "train_accuracy_percent": level}
            numbers = {**start, **known, "reached": found.reached, "seeds": seeds}
            entries.append(((each.name, head), f"{level} %", text if found.reached else "not reached", numbers))
    note = "Resolution: the measured epochs. A run that never reached a level counts as never in the median."
    title = f"{unit.capitalize()} of training to reach a train accuracy, median and range over seeds"
    columns = [f"{level} %" for level in summaries.LEVELS]
    return _table(f"{unit}-to-accuracy", title, ["experiment", "head"], columns, entries, [note, *seed_notes(experiments)])


def search_table(searches: Sequence[records.SearchRecord]) -> Table:
    """Returns a table of every setting that the searches tried, with its accuracy on the validation images."""
    rows, numbers, notes = [], [], []
    for search in searches:
        tried: dict[tuple[str, str], list[float | None]] = {}
        for trial in sorted(search.trials, key=lambda trial: search.heads.index(trial.head)):
            values = tried.setdefault((trial.head, records.setting_text(trial.settings)), [])
            values.append((trial.measured or {}).get(records.TEST_TOP1.name))
        for (head, setting), values in tried.items():
            # The mean over seeds; None if a run diverged.
            accuracy = None if None in values else records.TEST_TOP1.factor * statistics.fmean(value or 0.0 for value in values)
            chosen = head in search.choice and setting == records.setting_text(search.choice[head])
            start = {"experiment": search.experiment, "head": head, "setting": setting}
            shown = "diverged" if accuracy is None else number_text(accuracy, percent=True)
            rows.append([*start.values(), shown, "chosen" if chosen else NOTHING])
            numbers.append({**start, "validation accuracy": accuracy, "seeds": len(values), "chosen": int(chosen)})
        grid = "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in search.grid.items())
        notes.append(
            f"{search.experiment}: grid {grid}; {search.trial_epochs} {'epoch' if search.trial_epochs == 1 else 'epochs'} on "
            f"{100 * (1 - search.validation_fraction):g} % of the training images, seed {', '.join(map(str, search.trial_seeds))}. "
            f"Planned {search.planned}, decided {search.decided or 'not yet'}, before the seeds "
            f"{', '.join(map(str, search.seeds))} were run. Rule: {search.rule}."
        )
    cells = DataFrame(rows, columns=["experiment", "head", "setting", "validation accuracy", "choice"])
    bold = frozenset((row, column) for row, found in enumerate(numbers) if found["chosen"] for column in range(5))
    title = "Settings that were tried: accuracy on validation images, %"
    return Table("search", title, cells, numbers, notes, bold=bold)


def runs_table(experiments: Sequence[Experiment]) -> Table:
    """Returns a table of all runs, with their states and provenance."""
    numbers = []
    for run in (run for experiment in experiments for head in experiment.heads for run in experiment.all_of(head)):
        seconds = seconds_of(run)
        facts = {"experiment": run.experiment, "head": run.head, "seed": run.seed, "state": run.state, "epochs": run.epochs.last}
        facts |= {"planned": run.planned, "training seconds": None if math.isnan(seconds) else round(seconds, 2)}
        facts |= {"protocol": run.protocol, "global batch": run.global_batch, "started": run.started}
        numbers.append(facts | {"commit": run.commit, "error": run.error})
    rows = [[NOTHING if value is None else records.short_commit(str(value)) for value in facts.values()] for facts in numbers]
    return Table("runs", "The runs", DataFrame(rows, columns=list(numbers[0]) if numbers else []), numbers, stub=3)


def outcome_table(experiment: Experiment) -> Table:
    """Returns a table of the outcome, collapse and cost of each head, under headings that say whether higher or lower is better."""
    found, heads = outcome(experiment), [head for head in experiment.heads if experiment.of(head)]
    higher, lower = "higher is better", "lower is better"
    of_runs: dict[tuple[str, str], tuple[str, Callable[[Run], float]]] = {
        (higher, "margin"): (".3g", lambda run: _last(measured(run, records.MARGIN))),
        (lower, "loss - floor"): (".2g", lambda run: _last(measured(run, ABOVE_FLOOR))),
        (lower, "NC1"): (".2g", lambda run: _last(measured(run, records.NC1))),
        (lower, "seconds"): (".3g", seconds_of),
    }
    titles = {"points": (higher, "test accuracy, %"), "epochs": (lower, f"epochs to {NEAR_THE_FLOOR} x floor")}
    main = titles.get(found.unit, (lower, "loss - floor"))
    # Only the outcome is shown with its range, so that the table fits a terminal and a phone.
    columns = {main: [short_text(found.spreads.get(head), percent=found.percent) for head in heads]}
    for title, (form, value) in of_runs.items():
        values = [[number for run in experiment.of(head) if math.isfinite(number := value(run))] for head in heads]
        if title != main and any(values):
            columns[title] = [format(np.median(numbers), form) if numbers else NOTHING for numbers in values]
    ordered = sorted(columns, key=lambda title: title[0] != main[0])
    cells = {("", "head"): [label(head) for head in heads], **{title: columns[title] for title in ordered}}
    runs = [run for head in heads for run in experiment.of(head)]
    floors: dict[str, list[str]] = {}
    for name, text in dict.fromkeys((label(run.head), number_text(floor(run))) for run in runs):
        floors.setdefault(text, []).append(name)
    least = "; ".join(f"{text} for {', '.join(names)}" for text, names in floors.items())
    notes = [f"Floor, the least loss that the scale of a head allows: {least}."] if runs else []
    if len({len(experiment.of(head)) for head in experiment.heads}) > 1 or len(runs) < len(experiment.runs):
        notes += seed_notes([experiment])
    return Table("outcome", "Results: median over seeds (range)", DataFrame(cells), notes=notes, stub=1)


def _last(curve: Series) -> float:
    return float(curve.iat[-1]) if len(curve) else math.nan


def verdicts_table(verdicts: Mapping[str, Verdict]) -> Table:
    """Returns a table of the verdicts, with one experiment per row."""
    rows = [[name, found.call, found.best, found.reference, found.lead or NOTHING] for name, found in verdicts.items()]
    cells = DataFrame(rows, columns=["experiment", "verdict", "best head", "against", "lead"])
    return Table("verdicts", "The best head of each experiment", cells, stub=1)


def seed_notes(experiments: Sequence[Experiment]) -> list[str]:
    """Returns notes on the number of seeds behind each median, and on how many failed."""
    notes: dict[str, list[str]] = {}
    for experiment in experiments:
        counts = {}
        for head in experiment.heads:
            failed = len(experiment.all_of(head)) - len(experiment.of(head))
            counts[head] = f"{len(experiment.of(head))}" + (f" ({failed} failed and left out)" if failed else "")
        notes.setdefault(_same_or_each(counts, " of each head"), []).append(experiment.name)
    return [f"Seeds in {', '.join(names)}: {counts}." for counts, names in notes.items()]


def _numbers(over: Spread) -> dict[str, Any]:
    return dict(zip(Spread._fields[:4], over[:4], strict=True))


def _same_or_each(texts: Mapping[str, str], of_all: str = "") -> str:
    """Returns the text that all heads share, or the text of each head."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values())) + of_all
    return ", ".join(f"{head} {text}" for head, text in texts.items())


def _table(name: str, title: str, stub: list[str], columns: Sequence[Any], entries: Sequence[Cell], notes: list[str]) -> Table:
    """Returns a table of these cells, with a hyphen for missing ones."""
    rows: dict[tuple[str, ...], dict[Any, str]] = {}
    for row, column, text, _ in entries:
        rows.setdefault(row, {})[column] = text
    content = [[*row, *(texts.get(column, NOTHING) for column in columns)] for row, texts in rows.items()]
    return Table(name, title, DataFrame(content, columns=[*stub, *columns]), [numbers for *_, numbers in entries], notes)
