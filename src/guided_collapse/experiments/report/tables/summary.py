"""Tables of the end of training, of the time to an accuracy, and of the runs themselves."""

import math
from collections.abc import Sequence

from guided_collapse.experiments.records.declared.quantities import QUANTITIES
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.text import short_commit
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.report.summaries import at_epoch
from guided_collapse.experiments.report.tables.accuracy import seed_notes
from guided_collapse.experiments.report.tables.table import (
    NOTHING,
    Cell,
    CsvRow,
    Table,
    at_epoch_cell,
    epochs_text,
    spread_fields,
    words,
)


def final_table(experiments: Sequence[Experiment]) -> Table | None:
    """Every quantity at the last measurement of each run, heads as columns; None if nothing was measured."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows: list[tuple[Cell, ...]] = []
    csv_rows: list[CsvRow] = []
    for experiment in experiments:
        for quantity in QUANTITIES:
            found = {head: at_epoch(experiment.of(head), quantity, None) for head in heads}
            if any(found.values()):
                cells = [at_epoch_cell(found[head], None, percent=quantity.percent) for head in heads]
                rows.append((words(experiment.name), words(quantity.title), *cells))
            for head, value in found.items():
                if value:
                    start: CsvRow = {
                        "experiment": experiment.name,
                        "head": head,
                        "split": quantity.split,
                        "quantity": quantity.name,
                    }
                    csv_rows.append({**start, "measured_at": epochs_text(value.epochs), **spread_fields(value.spread)})
    if not rows:
        return None
    lasts = {experiment.name: _last_epochs(experiment) for experiment in experiments}
    return Table(
        name="final",
        title="The last measurement of each run, median and range over seeds",
        stub=2,
        columns=("experiment", "quantity", *heads),
        rows=tuple(rows),
        csv_rows=tuple(csv_rows),
        notes=(*(f"Last epoch in {name}: {text}." for name, text in lasts.items() if text), *seed_notes(experiments)),
    )


def runs_table(experiments: Sequence[Experiment]) -> Table:
    """Every run: how far it came and on what."""
    runs = [run for experiment in experiments for head in experiment.heads for run in experiment.all_of(head)]
    csv_rows = tuple(_run_row(run) for run in runs)
    columns = tuple(csv_rows[0]) if csv_rows else ()
    rows = tuple(
        tuple(words(NOTHING if value is None else short_commit(str(value))) for value in record.values()) for record in csv_rows
    )
    return Table("runs", "The runs", 3, columns, rows, csv_rows)


def _last_epochs(experiment: Experiment) -> str:
    lasts = {head: tuple(run.epochs.last for run in experiment.of(head) if run.epochs.last) for head in experiment.heads}
    texts = {head: epochs_text(epochs) for head, epochs in lasts.items() if epochs}
    return (
        next(iter(texts.values())) if len(set(texts.values())) == 1 else ", ".join(f"{head} {text}" for head, text in texts.items())
    )


def _run_row(run: Run) -> CsvRow:
    seconds = float(run.epochs.seconds.sum()) if len(run.epochs.seconds) else 0.0
    return {
        "experiment": run.experiment,
        "head": run.head,
        "seed": run.seed,
        "state": run.state,
        "epochs": run.epochs.last,
        "planned": run.planned,
        "training seconds": None if math.isnan(seconds) else round(seconds, 2),
        "protocol": run.protocol,
        "global batch": run.global_batch,
        "started": run.started,
        "commit": run.commit,
        "error": run.error,
    }
