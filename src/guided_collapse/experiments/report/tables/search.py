"""What was tried before the runs that are shown, and what was chosen."""

import statistics
from collections.abc import Sequence

from guided_collapse.experiments.records.declared.quantities import TEST_TOP1
from guided_collapse.experiments.records.schema import SearchRecord, Trial, setting_in_words
from guided_collapse.experiments.report.tables.table import NOTHING, Cell, CsvRow, Table, number_text, words


def search_table(searches: Sequence[SearchRecord]) -> Table | None:
    """Every setting that was tried, with its accuracy on the validation images; None if nothing was searched for."""
    rows: list[tuple[Cell, ...]] = []
    csv_rows: list[CsvRow] = []
    for search in searches:
        for head in search.heads:
            for setting, trials in _by_setting(search, head).items():
                is_chosen = head in search.choice and setting == setting_in_words(search.choice[head])
                accuracy = _accuracy(trials)
                shown = words("diverged" if accuracy is None else number_text(accuracy, percent=True))
                cells = words(search.experiment), words(head), words(setting), shown, words("chosen" if is_chosen else NOTHING)
                rows.append(tuple(cell.as_best() for cell in cells) if is_chosen else cells)
                found: CsvRow = {"experiment": search.experiment, "head": head, "setting": setting}
                csv_rows.append({**found, "validation accuracy": accuracy, "seeds": len(trials), "chosen": int(is_chosen)})
    if not rows:
        return None
    return Table(
        name="search",
        title="Settings that were tried: accuracy on validation images, %",
        stub=2,
        columns=("experiment", "head", "setting", "validation accuracy", "choice"),
        rows=tuple(rows),
        csv_rows=tuple(csv_rows),
        notes=tuple(_note(search) for search in searches),
    )


def _by_setting(search: SearchRecord, head: str) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in search.trials:
        if trial.head == head:
            found.setdefault(setting_in_words(trial.settings), []).append(trial)
    return found


def _accuracy(trials: Sequence[Trial]) -> float | None:
    """On average over seeds, in per cent; None if one diverged."""
    values = [(trial.measured or {}).get(TEST_TOP1.name) for trial in trials]
    return None if None in values else TEST_TOP1.factor * statistics.fmean(value or 0.0 for value in values)


def _note(search: SearchRecord) -> str:
    fields = "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in search.grid.items())
    epochs = f"{search.trial_epochs} {'epoch' if search.trial_epochs == 1 else 'epochs'}"
    return (
        f"{search.experiment}: grid {fields}; {epochs} on {100 * (1 - search.validation_fraction):g} % of the training images, "
        f"seed {', '.join(map(str, search.trial_seeds))}. Planned {search.planned}, decided {search.decided or 'not yet'}, before "
        f"the seeds {', '.join(map(str, search.seeds))} were run. Rule: {search.rule}."
    )
