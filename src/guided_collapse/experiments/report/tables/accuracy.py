"""The paper's tables of top-1 accuracy at chosen epochs, with what it prints beside ours."""

from collections.abc import Sequence

from guided_collapse.experiments.records.declared.quantities import Quantity
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.published_results import Printed, paper_accuracy
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.report.summaries import AtEpoch, at_epoch
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


def accuracy_table(experiments: Sequence[Experiment], quantity: Quantity, epochs: Sequence[int]) -> Table | None:
    """Median and range over seeds of an accuracy, experiments as rows, heads under epochs as columns; None if there is none.

    A run that is shorter than an epoch, or was not measured there, enters with its last measurement before it; the cell says so.
    """
    found = {
        (experiment.name, epoch, head): at_epoch(experiment.of(head), quantity, epoch)
        for experiment in experiments
        for epoch in epochs
        for head in experiment.heads
    }
    shown = [experiment for experiment in experiments if any(found[key] for key in found if key[0] == experiment.name)]
    if not shown:
        return None
    heads = in_order(head for experiment in shown for head in experiment.heads)
    rows, csv_rows = [], []
    for experiment in shown:
        ours = {(epoch, head): found.get((experiment.name, epoch, head)) for epoch in epochs for head in heads}
        rows.append((words(experiment.name), words("ours"), *_our_cells(ours, epochs, heads)))
        csv_rows += [_row(experiment.name, "ours", key, value) for key, value in ours.items() if value]
        papers = {epoch: paper_accuracy(quantity.split, experiment.name, epoch) for epoch in epochs}
        if any(papers.values()):
            cells = [_paper_cell(papers[epoch].get(head)) for epoch in epochs for head in heads]
            rows.append((words(experiment.name), words("paper"), *cells))
            csv_rows += [
                _paper_row(experiment.name, epoch, head, papers[epoch][head]) for epoch in epochs for head in papers[epoch]
            ]
    return Table(
        name=f"{quantity.split}-top1",
        title=f"Top-1 {quantity.split} accuracy in per cent, median and range over seeds",
        stub=2,
        columns=("experiment", "source", *(list(heads) * len(epochs))),
        groups=tuple((f"epoch {epoch}", len(heads)) for epoch in epochs),
        rows=tuple(rows),
        csv_rows=tuple(csv_rows),
        notes=(*_notes(rows), *seed_notes(shown)),
    )


def seed_notes(experiments: Sequence[Experiment]) -> list[str]:
    """How many seeds each median is over, and how many failed."""
    notes: dict[str, list[str]] = {}
    for experiment in experiments:
        parts = {}
        for head in experiment.heads:
            failed = len(experiment.all_of(head)) - len(experiment.of(head))
            parts[head] = f"{len(experiment.of(head))}" + (f" ({failed} failed and left out)" if failed else "")
        same = next(iter(parts.values())) if len(set(parts.values())) == 1 else None
        counts = f"{same} of each head" if same else ", ".join(f"{head} {count}" for head, count in parts.items())
        notes.setdefault(counts, []).append(experiment.name)
    return [f"Seeds in {', '.join(names)}: {counts}." for counts, names in notes.items()]


def _our_cells(ours: dict[tuple[int, str], AtEpoch | None], epochs: Sequence[int], heads: Sequence[str]) -> list[Cell]:
    cells = []
    for epoch in epochs:
        medians = [value.spread.median for head in heads if (value := ours[epoch, head])]
        for head in heads:
            value = ours[epoch, head]
            cell = at_epoch_cell(value, epoch, percent=True)
            best = value is not None and len(medians) > 1 and value.spread.median == max(medians)
            cells.append(cell.as_best() if best else cell)
    return cells


def _paper_cell(printed: Printed | None) -> Cell:
    if printed is None:
        return words(NOTHING)
    median, low, high = f"{printed.median:.2f}", f"{printed.low:.1f}", f"{printed.high:.1f}"
    return Cell(f"{median} ({low} to {high})", rf"${median}\,^{{{high}}}_{{{low}}}$")


def _row(experiment: str, source: str, key: tuple[int, str], value: AtEpoch) -> CsvRow:
    start: CsvRow = {"experiment": experiment, "source": source, "head": key[1], "epoch": key[0]}
    return {**start, "measured_at": epochs_text(value.epochs), **spread_fields(value.spread)}


def _paper_row(experiment: str, epoch: int, head: str, printed: Printed) -> CsvRow:
    start: CsvRow = {"experiment": experiment, "source": "paper", "head": head, "epoch": epoch, "measured_at": str(epoch)}
    return {**start, **printed._asdict(), "seeds": 5}


def _notes(rows: Sequence[tuple[Cell, ...]]) -> list[str]:
    notes = ["Measured in eval mode on clean data. Bold: the highest median of ours in an epoch."]
    if any("[epoch" in cell.text for row in rows for cell in row):
        notes.append(
            "[epoch n]: not measured at the column's epoch, or the run is shorter; the last measurement before it is shown."
        )
    if any(row[1].text == "paper" for row in rows):
        notes.append("paper: as printed in Markou, Ajanthan and Gould, Guiding Neural Collapse, NeurIPS 2024; five seeds.")
    return notes
