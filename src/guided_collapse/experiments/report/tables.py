"""The tables of a report."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

from pandas import DataFrame, MultiIndex, read_csv

from guided_collapse.experiments.records import (
    NC1,
    QUANTITIES,
    TEST_TOP1,
    TRAIN_LOSS,
    TRAIN_TOP1,
    Quantity,
    SearchRecord,
    setting_in_words,
    short_commit,
)
from guided_collapse.experiments.report.formats import NOTHING, Table, number_text, short_text, spread_text
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.report.summaries import (
    LEVELS,
    Experiment,
    Spread,
    at_epoch,
    measured,
    outcome,
    span,
    spread,
    when_reached,
)


def all_tables(experiments: Sequence[Experiment], epochs: Sequence[int], searches: Sequence[SearchRecord] = ()) -> list[Table]:
    """The tables for which there are numbers."""
    tables = [accuracy_table(experiments, quantity, epochs) for quantity in (TRAIN_TOP1, TEST_TOP1)]
    tables += [pairs_table(experiments), final_table(experiments)]
    tables += [reaching_table(experiments, "epochs"), reaching_table(experiments, "seconds")]
    return [table for table in (*tables, search_table(searches), runs_table(experiments)) if len(table.cells)]


def accuracy_table(experiments: Sequence[Experiment], quantity: Quantity, epochs: Sequence[int]) -> Table:
    """The paper's table of an accuracy: experiments as rows, heads under epochs as columns, what the paper prints below ours.

    A run that is shorter than an epoch, or was not measured there, enters with its last measurement before it; the cell says so.
    """
    rows: dict[tuple[str, ...], dict[tuple[int, str], str]] = {}
    numbers: list[dict[str, Any]] = []
    shown, best = [], set()
    for experiment in experiments:
        wanted = [(epoch, head) for epoch in epochs for head in experiment.heads]
        ours = {key: found for key in wanted if (found := at_epoch(experiment.of(key[1]), quantity, key[0]))}
        if not ours:
            continue
        shown.append(experiment)
        for epoch in epochs:
            medians = {key: found.median for key, found in ours.items() if key[0] == epoch}
            best |= {(len(rows), key) for key, median in medians.items() if len(medians) > 1 and median == max(medians.values())}
        rows[experiment.name, "ours"] = {
            key: spread_text(found, percent=True) + ("" if set(found.epochs) == {key[0]} else f" [epoch {span(found.epochs)}]")
            for key, found in ours.items()
        }
        papers = {key: printed for key, printed in paper_accuracy(quantity.split, experiment.name).items() if key[0] in epochs}
        if papers:
            rows[experiment.name, "paper"] = {key: f"{s.median:.2f} ({s.low:.1f} to {s.high:.1f})" for key, s in papers.items()}
        for source, spreads in (("ours", ours), ("paper", papers)):
            for (epoch, head), found in spreads.items():
                start = {"experiment": experiment.name, "source": source, "head": head, "epoch": epoch}
                numbers.append({**start, "measured_at": span(found.epochs), **_numbers(found)})
    heads = in_order(head for experiment in shown for head in experiment.heads)
    columns = [(epoch, head) for epoch in epochs for head in heads]
    cells = _cells(["experiment", "source"], columns, rows)
    headings = [("", "experiment"), ("", "source"), *((f"epoch {epoch}", head) for epoch, head in columns)]
    cells.columns = MultiIndex.from_tuples(headings)
    notes = ["Measured in eval mode on clean data. Bold: the highest median of ours in an epoch."]
    if cells.map(lambda text: "[epoch" in text).any(axis=None):
        notes += ["[epoch n]: not measured at the column's epoch, or the run is shorter; the last measurement before it is shown."]
    if any(source == "paper" for _, source in rows):
        notes += ["paper: as printed in Markou, Ajanthan and Gould, Guiding Neural Collapse, NeurIPS 2024; five seeds."]
    title = f"Top-1 {quantity.split} accuracy in per cent, median and range over seeds"
    bold = frozenset((row, 2 + columns.index(key)) for row, key in best)
    return Table(f"{quantity.split}-top1", title, cells, numbers, [*notes, *seed_notes(shown)], bold=bold)


def paper_accuracy(split: str, experiment: str) -> dict[tuple[int, str], Spread]:
    """What the paper prints in tables 1 to 3 for an experiment, in per cent over five seeds, by epoch and head.

    On ImageNet the paper omits the gradient through the solve, so its number is that of the head `nearest-etf-detached`. One low
    is printed above its median; it stands as printed.
    """
    with files("guided_collapse.experiments.report").joinpath("assets", "published.csv").open() as file:
        found = read_csv(file).query("split == @split and experiment == @experiment")
    return {(row.epoch, row.head): Spread(row.median, row.low, row.high, 5, (row.epoch,)) for row in found.itertuples()}


def pairs_table(experiments: Sequence[Experiment]) -> Table:
    """How far each head is ahead of the others in test accuracy, seed by seed, if any two heads share two seeds."""
    heads = in_order(head for experiment in experiments if experiment.has_test for head in experiment.heads)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    numbers = []
    for experiment, (place, head) in itertools.product(experiments, enumerate(heads)):
        gains = {other: found for other in heads[:place] if (found := _gains(experiment, head, other))}
        if not any(len(found) > 1 for found in gains.values()):
            continue
        rows[experiment.name, head] = {}
        for other, found in gains.items():
            over, ahead = spread(found), sum(gain > 0 for gain in found)
            text = f"{over.median:+.2f} ({over.low:+.2f} to {over.high:+.2f}), {ahead} of {over.seeds}"
            rows[experiment.name, head][f"ahead of {other}"] = text
            numbers.append({"experiment": experiment.name, "head": head, "against": other, **_numbers(over), "ahead": ahead})
    note = (
        "Median and range at the last epoch that both runs of a seed have measured, and on how many seeds the row is ahead. "
        "Heads of a seed share the initial network and, unless the protocol is the paper's, the batches."
    )
    cells = _cells(["experiment", "head"], [f"ahead of {other}" for other in heads[:-1]], rows)
    return Table("pairs", "Differences between heads on the same seeds, in points of test accuracy", cells, numbers, [note])


def _gains(experiment: Experiment, head: str, other: str) -> list[float]:
    """Points of test accuracy, one for each seed that both heads have measured."""
    others = {run.seed: measured(run, TEST_TOP1) for run in experiment.of(other)}
    shared = [run for run in experiment.of(head) if run.seed in others]
    gains = ((measured(run, TEST_TOP1) - others[run.seed]).dropna() for run in shared)
    return [float(gain.iat[-1]) for gain in gains if len(gain)]


def final_table(experiments: Sequence[Experiment]) -> Table:
    """Every quantity at the last measurement of each run, heads as columns."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    numbers, notes = [], []
    for experiment in experiments:
        for quantity in QUANTITIES:
            found = {head: end for head in heads if (end := at_epoch(experiment.of(head), quantity))}
            if found:
                texts = {head: spread_text(end, percent=quantity.percent) for head, end in found.items()}
                rows[experiment.name, quantity.title] = texts
            for head, end in found.items():
                start = {"experiment": experiment.name, "head": head, "split": quantity.split, "quantity": quantity.name}
                numbers.append({**start, "measured_at": span(end.epochs), **_numbers(end)})
        lasts = {head: [run.epochs.last for run in experiment.of(head) if run.epochs.last] for head in experiment.heads}
        if spans := {head: span(epochs) for head, epochs in lasts.items() if epochs}:
            notes.append(f"Last epoch in {experiment.name}: {_same_or_each(spans)}.")
    cells = _cells(["experiment", "quantity"], heads, rows)
    title = "The last measurement of each run, median and range over seeds"
    return Table("final", title, cells, numbers, [*notes, *seed_notes(experiments)])


def reaching_table(experiments: Sequence[Experiment], unit: Literal["epochs", "seconds"]) -> Table:
    """Epochs or seconds until levels of train accuracy, of runs that have measured it, or their time."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    numbers: list[dict[str, Any]] = []
    for experiment in experiments:
        for head in experiment.heads:
            reached = {level: found for level in LEVELS if (found := when_reached(experiment.of(head), level))}
            if not any(getattr(found, unit) for found in reached.values()):
                continue
            texts = rows[experiment.name, head] = {}
            for level, found in reached.items():
                over, part = getattr(found, unit), f", {found.reached} of {found.epochs.seeds}"
                text = spread_text(over) + ("" if found.reached == found.epochs.seeds else part)
                texts[f"{level} %"] = text if found.reached else "not reached"
                # A time that is unknown and one that never came are both empty.
                ends = {name: getattr(over, name, math.inf) for name in ("median", "low", "high")}
                known = {name: value if math.isfinite(value) else None for name, value in ends.items()}
                start = {"experiment": experiment.name, "head": head, "train_accuracy_percent": level}
                numbers.append({**start, **known, "reached": found.reached, "seeds": found.epochs.seeds})
    note = (
        "Measured in eval mode, so the resolution is that of the measured epochs. A run that has not reached a level counts as "
        "never in the median."
    )
    title = f"{unit.capitalize()} of training until a train accuracy is first measured, median and range over seeds"
    cells = _cells(["experiment", "head"], [f"{level} %" for level in LEVELS], rows)
    return Table(f"{unit}-to-accuracy", title, cells, numbers, [note, *seed_notes(experiments)])


def search_table(searches: Sequence[SearchRecord]) -> Table:
    """Every setting that was tried, with its accuracy on the validation images."""
    rows, numbers = [], []
    for search, head in ((each, head) for each in searches for head in each.heads):
        tried: dict[str, list[float | None]] = {}
        for trial in search.trials:
            if trial.head == head:
                tried.setdefault(setting_in_words(trial.settings), []).append((trial.measured or {}).get(TEST_TOP1.name))
        for setting, values in tried.items():
            # On average over seeds; a setting with a run that diverged has none.
            accuracy = None if None in values else TEST_TOP1.factor * statistics.fmean(value or 0.0 for value in values)
            chosen = head in search.choice and setting == setting_in_words(search.choice[head])
            start = {"experiment": search.experiment, "head": head, "setting": setting}
            shown = "diverged" if accuracy is None else number_text(accuracy, percent=True)
            rows.append([*start.values(), shown, "chosen" if chosen else NOTHING])
            numbers.append({**start, "validation accuracy": accuracy, "seeds": len(values), "chosen": int(chosen)})
    cells = DataFrame(rows, columns=["experiment", "head", "setting", "validation accuracy", "choice"])
    bold = frozenset((row, column) for row, found in enumerate(numbers) if found["chosen"] for column in range(5))
    title = "Settings that were tried: accuracy on validation images, %"
    return Table("search", title, cells, numbers, [_search_note(search) for search in searches], bold=bold)


def _search_note(search: SearchRecord) -> str:
    fields = "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in search.grid.items())
    epochs = f"{search.trial_epochs} {'epoch' if search.trial_epochs == 1 else 'epochs'}"
    return (
        f"{search.experiment}: grid {fields}; {epochs} on {100 * (1 - search.validation_fraction):g} % of the training images, "
        f"seed {', '.join(map(str, search.trial_seeds))}. Planned {search.planned}, decided {search.decided or 'not yet'}, before "
        f"the seeds {', '.join(map(str, search.seeds))} were run. Rule: {search.rule}."
    )


def runs_table(experiments: Sequence[Experiment]) -> Table:
    """Every run: how far it came and on what."""
    numbers = []
    for run in (run for experiment in experiments for head in experiment.heads for run in experiment.all_of(head)):
        seconds = float(run.epochs.seconds.sum())
        facts = {"experiment": run.experiment, "head": run.head, "seed": run.seed, "state": run.state, "epochs": run.epochs.last}
        facts |= {"planned": run.planned, "training seconds": None if math.isnan(seconds) else round(seconds, 2)}
        facts |= {"protocol": run.protocol, "global batch": run.global_batch, "started": run.started}
        numbers.append(facts | {"commit": run.commit, "error": run.error})
    rows = [[NOTHING if value is None else short_commit(str(value)) for value in facts.values()] for facts in numbers]
    return Table("runs", "The runs", DataFrame(rows, columns=list(numbers[0]) if numbers else []), numbers, stub=3)


def outcome_table(experiment: Experiment) -> Table:
    """The outcome of each head, and beside it the loss and the variability within classes that training ended with."""
    found = outcome(experiment)
    rows = []
    for head in experiment.heads:
        ends = [short_text(at_epoch(experiment.of(head), quantity)) for quantity in (TRAIN_LOSS, NC1)]
        rows.append([head, short_text(found.spreads.get(head), percent=found.percent), *ends])
    counts = {len(runs) for head in experiment.heads for runs in (experiment.of(head), experiment.all_of(head))}
    over = f"{min(counts)} seeds" if len(counts) == 1 else "seeds"
    title = "Results of one seed" if counts == {1} else f"Results: median and range over {over}"
    notes = seed_notes([experiment]) if len(counts) > 1 else []
    cells = DataFrame(rows, columns=["head", found.title, "train loss", "NC1"])
    return Table("outcome", title, cells, notes=notes, stub=1)


def outcomes_table(experiments: Sequence[Experiment]) -> Table:
    """The outcome of every experiment, heads as columns."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for experiment in experiments:
        title, _, percent, spreads = outcome(experiment)
        rows[experiment.name, title] = {head: short_text(over, percent=percent) for head, over in spreads.items()}
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    return Table("outcomes", "Results: median and range over seeds", _cells(["experiment", "result"], heads, rows))


def seed_notes(experiments: Sequence[Experiment]) -> list[str]:
    """How many seeds each median is over, and how many failed."""
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
    """The text that all heads share, or each head with its own."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values())) + of_all
    return ", ".join(f"{head} {text}" for head, text in texts.items())


def _cells(stub: list[str], columns: Sequence[Any], rows: Mapping[tuple[str, ...], Mapping[Any, str]]) -> DataFrame:
    """A row of text for each key of `rows`, which are its headings; a hyphen where it has no text."""
    content = [[*key, *(texts.get(column, NOTHING) for column in columns)] for key, texts in rows.items()]
    return DataFrame(content, columns=[*stub, *columns])
