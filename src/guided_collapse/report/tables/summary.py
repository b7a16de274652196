"""Tables of the end of training, of the time to an accuracy, and of the runs themselves."""

import math
from collections.abc import Sequence
from typing import Literal

from guided_collapse.records.quantities import QUANTITIES
from guided_collapse.records.run import Run
from guided_collapse.records.text import short_commit
from guided_collapse.report.experiment import Experiment
from guided_collapse.report.looks import in_order
from guided_collapse.report.summaries import at_epoch
from guided_collapse.report.tables.accuracy import Record, seed_notes, spread_fields
from guided_collapse.report.tables.numbers import at_epoch_cell, epochs_text, spread_cell
from guided_collapse.report.tables.reaching import LEVELS, Reached, when_reached
from guided_collapse.report.tables.table import NOTHING, Cell, Table, words


def final_table(experiments: Sequence[Experiment]) -> Table | None:
    """Every quantity at the last measurement of each run, heads as columns; None if nothing was measured."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows: list[tuple[Cell, ...]] = []
    records: list[Record] = []
    for experiment in experiments:
        for quantity in QUANTITIES:
            found = {head: at_epoch(experiment.of(head), quantity, None) for head in heads}
            if any(found.values()):
                cells = [at_epoch_cell(found[head], None, percent=quantity.percent) for head in heads]
                rows.append((words(experiment.name), words(quantity.title), *cells))
            for head, value in found.items():
                if value:
                    start: Record = {
                        "experiment": experiment.name,
                        "head": head,
                        "split": quantity.split,
                        "quantity": quantity.name,
                    }
                    records.append({**start, "measured_at": epochs_text(value.epochs), **spread_fields(value.spread)})
    if not rows:
        return None
    lasts = {experiment.name: _last_epochs(experiment) for experiment in experiments}
    return Table(
        name="final",
        title="The last measurement of each run, median and range over seeds",
        stub=2,
        columns=("experiment", "quantity", *heads),
        rows=tuple(rows),
        records=tuple(records),
        notes=(*(f"Last epoch in {name}: {text}." for name, text in lasts.items() if text), *seed_notes(experiments)),
    )


def reaching_table(experiments: Sequence[Experiment], unit: Literal["epochs", "seconds"]) -> Table | None:
    """Epochs or seconds until levels of train accuracy; None if no train accuracy was measured, or no time."""
    rows, records = [], []
    for experiment in experiments:
        for head in experiment.heads:
            reached = [when for level in LEVELS if (when := when_reached(experiment.of(head), level))]
            if any(when.epochs if unit == "epochs" else when.seconds for when in reached):
                rows.append((words(experiment.name), words(head), *(_reached_cell(when, unit) for when in reached)))
                records += [_reached_record(experiment.name, head, when, unit) for when in reached]
    if not rows:
        return None
    return Table(
        name=f"{unit}-to-accuracy",
        title=f"{unit.capitalize()} of training until a train accuracy is first measured, median and range over seeds",
        stub=2,
        columns=("experiment", "head", *(f"{level} %" for level in LEVELS)),
        rows=tuple(rows),
        records=tuple(records),
        notes=(
            "Measured in eval mode, so the resolution is that of the measured epochs. A run that has not reached a level counts as "
            "never in the median.",
            *seed_notes(experiments),
        ),
    )


def runs_table(experiments: Sequence[Experiment]) -> Table:
    """Every run: how far it came and on what."""
    runs = [run for experiment in experiments for head in experiment.heads for run in experiment.all_of(head)]
    records = tuple(_run_record(run) for run in runs)
    columns = tuple(records[0]) if records else ()
    rows = tuple(
        tuple(words(NOTHING if value is None else short_commit(str(value))) for value in record.values()) for record in records
    )
    return Table("runs", "The runs", 3, columns, rows, records)


def _last_epochs(experiment: Experiment) -> str:
    lasts = {
        head: tuple(int(run.epochs.numbers[-1]) for run in experiment.of(head) if len(run.epochs.numbers))
        for head in experiment.heads
    }
    texts = {head: epochs_text(epochs) for head, epochs in lasts.items() if epochs}
    return (
        next(iter(texts.values())) if len(set(texts.values())) == 1 else ", ".join(f"{head} {text}" for head, text in texts.items())
    )


def _reached_cell(when: Reached, unit: Literal["epochs", "seconds"]) -> Cell:
    if when.reached == 0:
        return words("not reached")
    cell = spread_cell(when.epochs if unit == "epochs" else when.seconds)
    if when.reached == when.epochs.count:
        return cell
    part = f", {when.reached} of {when.epochs.count}"
    return Cell(cell.text + part, cell.latex + part)


def _reached_record(experiment: str, head: str, when: Reached, unit: Literal["epochs", "seconds"]) -> Record:
    spread = when.epochs if unit == "epochs" else when.seconds
    known = {} if spread is None else {"median": spread.median, "low": spread.low, "high": spread.high}
    figures = {name: _finite(known.get(name)) for name in ("median", "low", "high")}
    start: Record = {"experiment": experiment, "head": head, "train_accuracy_percent": when.level}
    return {**start, **figures, "reached": when.reached, "seeds": when.epochs.count}


def _run_record(run: Run) -> Record:
    seconds = float(run.epochs.seconds.sum()) if len(run.epochs.seconds) else 0.0
    return {
        "experiment": run.experiment,
        "head": run.head,
        "seed": run.seed,
        "state": run.state,
        "epochs": int(run.epochs.numbers[-1]) if len(run.epochs.numbers) else 0,
        "planned": run.planned,
        "training seconds": None if math.isnan(seconds) else round(seconds, 2),
        "protocol": run.protocol,
        "global batch": run.global_batch,
        "started": run.started,
        "commit": run.commit,
        "error": run.error,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
