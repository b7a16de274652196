"""The tables of a report, and their text as Markdown, CSV and LaTeX, and for a terminal."""

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pandas import DataFrame, MultiIndex

from guided_collapse.experiments.records import NC1, QUANTITIES, Quantity, TEST_TOP1, TRAIN_LOSS, TRAIN_TOP1
from guided_collapse.experiments.records import Run
from guided_collapse.experiments.records import SearchRecord, setting_in_words
from guided_collapse.experiments.records import aligned, one_line, short_commit
from guided_collapse.experiments.report.published import paper_accuracy
from guided_collapse.experiments.report.styles import in_order
from guided_collapse.experiments.report.summaries import (
    LEVELS,
    Experiment,
    Reached,
    Spread,
    at_epoch,
    outcome,
    span,
    spread,
    when_reached,
)

NOTHING, NEVER = "-", "never"
NUMBER = rf"[+-]?\d[\d.]*(?:e[+-]\d+)?|{NEVER}"
MEDIAN_AND_RANGE = re.compile(rf"({NUMBER})(?: \(({NUMBER}) to ({NUMBER})\))?(|[ ,].*)")
"""A cell with a median: the median, the ends of its range, and what else the cell says."""

_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


@dataclass(frozen=True)
class Table:
    """Text for people, and the same numbers for programs.

    Attributes:
        name: of the files.
        title: one line.
        stub: how many columns at the left are headings of the row.
        cells: text; columns have two levels where a heading spans several of them.
        numbers: every digit of every number, one row for each.
        notes: what a reader must know.
        bold: row and column of the cells in bold.
    """

    name: str
    title: str
    stub: int
    cells: DataFrame
    numbers: DataFrame
    notes: tuple[str, ...] = ()
    bold: frozenset[tuple[int, int]] = frozenset()

    @property
    def columns(self) -> list[str]:
        """The headings of the columns."""
        return list(self.cells.columns.get_level_values(-1))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings over several columns, each with how many columns it spans."""
        over = self.cells.columns.get_level_values(0)[self.stub :] if self.cells.columns.nlevels > 1 else []
        return [(heading, len(list(spanned))) for heading, spanned in itertools.groupby(over)]


def all_tables(experiments: Sequence[Experiment], epochs: Sequence[int], searches: Sequence[SearchRecord] = ()) -> list[Table]:
    """The tables for which there are numbers."""
    tables = [
        accuracy_table(experiments, TRAIN_TOP1, epochs),
        accuracy_table(experiments, TEST_TOP1, epochs),
        pairs_table(experiments),
        final_table(experiments),
        reaching_table(experiments, "epochs"),
        reaching_table(experiments, "seconds"),
        search_table(searches),
        runs_table(experiments),
    ]
    return [table for table in tables if table is not None]


def accuracy_table(experiments: Sequence[Experiment], quantity: Quantity, epochs: Sequence[int]) -> Table | None:
    """The paper's table of an accuracy: experiments as rows, heads under epochs as columns, what the paper prints below ours.

    A run that is shorter than an epoch, or was not measured there, enters with its last measurement before it; the cell says so.
    """
    rows: dict[tuple[str, ...], dict[tuple[int, str], str]] = {}
    best: set[tuple[int, tuple[int, str]]] = set()
    numbers: list[dict[str, Any]] = []
    shown = []
    for experiment in experiments:
        wanted = [(epoch, head) for epoch in epochs for head in experiment.heads]
        ours = {key: found for key in wanted if (found := at_epoch(experiment.of(key[1]), quantity, key[0]))}
        if not ours:
            continue
        shown.append(experiment)
        for epoch in epochs:
            medians = {key: found.median for key, found in ours.items() if key[0] == epoch}
            best |= {(len(rows), key) for key, median in medians.items() if len(medians) > 1 and median == max(medians.values())}
        rows[experiment.name, "ours"] = {key: _at_epoch_text(found, key[0]) for key, found in ours.items()}
        papers = {
            (epoch, head): printed
            for epoch in epochs
            for head, printed in paper_accuracy(quantity.split, experiment.name, epoch).items()
        }
        if papers:
            rows[experiment.name, "paper"] = {key: f"{s.median:.2f} ({s.low:.1f} to {s.high:.1f})" for key, s in papers.items()}
        for source, spreads in (("ours", ours), ("paper", papers)):
            numbers += [
                {"experiment": experiment.name, "source": source, "head": head, "epoch": epoch, **_fields(found)}
                for (epoch, head), found in spreads.items()
            ]
    heads = in_order(head for experiment in shown for head in experiment.heads)
    columns = [(epoch, head) for epoch in epochs for head in heads]
    cells = _cells(("experiment", "source"), columns, rows)
    cells.columns = MultiIndex.from_tuples(
        [("", "experiment"), ("", "source"), *((f"epoch {epoch}", head) for epoch, head in columns)]
    )
    notes = ["Measured in eval mode on clean data. Bold: the highest median of ours in an epoch."]
    if cells.map(lambda text: "[epoch" in text).any(axis=None):
        notes += ["[epoch n]: not measured at the column's epoch, or the run is shorter; the last measurement before it is shown."]
    if any(source == "paper" for _, source in rows):
        notes += ["paper: as printed in Markou, Ajanthan and Gould, Guiding Neural Collapse, NeurIPS 2024; five seeds."]
    return _table(
        f"{quantity.split}-top1",
        f"Top-1 {quantity.split} accuracy in per cent, median and range over seeds",
        cells,
        numbers,
        [*notes, *seed_notes(shown)],
        bold=frozenset((row, 2 + columns.index(key)) for row, key in best),
    )


def pairs_table(experiments: Sequence[Experiment]) -> Table | None:
    """How far each head is ahead of the others in test accuracy, seed by seed; None if no two heads share two seeds.

    Heads of a seed start from the same network and see the same batches. What they owe to that cancels in the difference, which
    tells heads apart even where their medians and ranges do not.
    """
    heads = in_order(head for experiment in experiments if experiment.has_test for head in experiment.heads)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    numbers: list[dict[str, Any]] = []
    for experiment in experiments:
        for number, head in enumerate(heads):
            gains = {other: found for other in heads[:number] if (found := _gains(experiment, head, other))}
            if not any(len(found) > 1 for found in gains.values()):
                continue
            rows[experiment.name, head] = {}
            for other, found in gains.items():
                over, ahead = spread(found), sum(gain > 0 for gain in found)
                text = f"{over.median:+.2f} ({over.low:+.2f} to {over.high:+.2f}), {ahead} of {over.seeds}"
                rows[experiment.name, head][f"ahead of {other}"] = text
                numbers.append({"experiment": experiment.name, "head": head, "against": other, **_fields(over), "ahead": ahead})
    return _table(
        "pairs",
        "Differences between heads on the same seeds, in points of test accuracy",
        _cells(("experiment", "head"), [f"ahead of {other}" for other in heads[:-1]], rows),
        numbers,
        [
            "Median and range at the last epoch that both runs of a seed have measured, and on how many seeds the row is ahead. "
            "Heads of a seed share the initial network and, unless the protocol is the paper's, the batches."
        ],
    )


def _gains(experiment: Experiment, head: str, other: str) -> list[float]:
    """Points of test accuracy, one for each seed that both heads have measured."""

    def measured(run: Run) -> dict[int, float]:
        values = run.epochs.of(TEST_TOP1.split, TEST_TOP1.name) * TEST_TOP1.factor
        return {int(epoch): float(value) for epoch, value in zip(run.epochs.numbers, values, strict=True) if not np.isnan(value)}

    others = {run.seed: measured(run) for run in experiment.of(other)}
    found = []
    for run in experiment.of(head):
        mine, theirs = measured(run), others.get(run.seed, {})
        if both := mine.keys() & theirs.keys():
            found.append(mine[max(both)] - theirs[max(both)])
    return found


def final_table(experiments: Sequence[Experiment]) -> Table | None:
    """Every quantity at the last measurement of each run, heads as columns; None if nothing was measured."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    numbers: list[dict[str, Any]] = []
    notes = []
    for experiment in experiments:
        for quantity in QUANTITIES:
            found = {head: end for head in heads if (end := at_epoch(experiment.of(head), quantity))}
            if found:
                texts = {head: spread_text(end, percent=quantity.percent) for head, end in found.items()}
                rows[experiment.name, quantity.title] = texts
            numbers += [
                {"experiment": experiment.name, "head": head, "split": quantity.split, "quantity": quantity.name, **_fields(end)}
                for head, end in found.items()
            ]
        lasts = {head: [run.epochs.last for run in experiment.of(head) if run.epochs.last] for head in experiment.heads}
        spans = {head: span(epochs) for head, epochs in lasts.items() if epochs}
        if spans:
            notes.append(f"Last epoch in {experiment.name}: {_same_or_each(spans)}.")
    title = "The last measurement of each run, median and range over seeds"
    return _table("final", title, _cells(("experiment", "quantity"), heads, rows), numbers, [*notes, *seed_notes(experiments)])


def reaching_table(experiments: Sequence[Experiment], unit: Literal["epochs", "seconds"]) -> Table | None:
    """Epochs or seconds until levels of train accuracy; None if no train accuracy was measured, or no time."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    numbers: list[dict[str, Any]] = []
    for experiment in experiments:
        for head in experiment.heads:
            reached = {level: found for level in LEVELS if (found := when_reached(experiment.of(head), level))}
            if not any(getattr(found, unit) for found in reached.values()):
                continue
            rows[experiment.name, head] = {f"{level} %": _reached_text(found, unit) for level, found in reached.items()}
            for level, found in reached.items():
                # A time that is unknown and one that never came are both empty.
                over = getattr(found, unit) or Spread(math.inf, math.inf, math.inf, found.epochs.seeds)
                ends = {name: value if math.isfinite(value) else None for name, value in list(over._asdict().items())[:3]}
                start = {"experiment": experiment.name, "head": head, "train_accuracy_percent": level}
                numbers.append({**start, **ends, "reached": found.count, "seeds": over.seeds})
    return _table(
        f"{unit}-to-accuracy",
        f"{unit.capitalize()} of training until a train accuracy is first measured, median and range over seeds",
        _cells(("experiment", "head"), [f"{level} %" for level in LEVELS], rows),
        numbers,
        [
            "Measured in eval mode, so the resolution is that of the measured epochs. A run that has not reached a level counts as "
            "never in the median.",
            *seed_notes(experiments),
        ],
    )


def _reached_text(found: Reached, unit: str) -> str:
    if found.count == 0:
        return "not reached"
    text = spread_text(getattr(found, unit))
    return text if found.count == found.epochs.seeds else f"{text}, {found.count} of {found.epochs.seeds}"


def search_table(searches: Sequence[SearchRecord]) -> Table | None:
    """Every setting that was tried, with its accuracy on the validation images; None if nothing was searched for."""
    rows: list[list[str]] = []
    numbers: list[dict[str, Any]] = []
    for search in searches:
        for head in search.heads:
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
    cells = DataFrame(rows, columns=["experiment", "head", "setting", "validation accuracy", "choice"], dtype=object)
    bold = frozenset((row, column) for row, found in enumerate(numbers) if found["chosen"] for column in range(5))
    title = "Settings that were tried: accuracy on validation images, %"
    return _table("search", title, cells, numbers, [_search_note(search) for search in searches], bold=bold)


def _search_note(search: SearchRecord) -> str:
    fields = "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in search.grid.items())
    epochs = f"{search.trial_epochs} {'epoch' if search.trial_epochs == 1 else 'epochs'}"
    return (
        f"{search.experiment}: grid {fields}; {epochs} on {100 * (1 - search.validation_fraction):g} % of the training images, "
        f"seed {', '.join(map(str, search.trial_seeds))}. Planned {search.planned}, decided {search.decided or 'not yet'}, before "
        f"the seeds {', '.join(map(str, search.seeds))} were run. Rule: {search.rule}."
    )


def runs_table(experiments: Sequence[Experiment]) -> Table | None:
    """Every run: how far it came and on what; None without runs."""
    runs = [run for experiment in experiments for head in experiment.heads for run in experiment.all_of(head)]
    numbers = []
    for run in runs:
        seconds = float(run.epochs.seconds.sum())
        facts = {"experiment": run.experiment, "head": run.head, "seed": run.seed, "state": run.state, "epochs": run.epochs.last}
        facts |= {"planned": run.planned, "training seconds": None if math.isnan(seconds) else round(seconds, 2)}
        facts |= {"protocol": run.protocol, "global batch": run.global_batch, "started": run.started}
        numbers.append(facts | {"commit": run.commit, "error": run.error})
    rows = [[NOTHING if value is None else short_commit(str(value)) for value in facts.values()] for facts in numbers]
    return _table("runs", "The runs", DataFrame(rows, columns=list(numbers[0]) if numbers else []), numbers, [], stub=3)


def outcome_table(experiment: Experiment) -> Table:
    """The outcome of each head, and beside it the loss and the variability within classes that training ended with."""
    found = outcome(experiment)
    rows = {}
    for head in experiment.heads:
        ends = {name: at_epoch(experiment.of(head), quantity) for name, quantity in (("train loss", TRAIN_LOSS), ("NC1", NC1))}
        first = short_text(found.spreads.get(head), percent=found.percent)
        rows[head,] = {found.title: first, **{name: short_text(end) for name, end in ends.items()}}
    counts = {len(runs) for head in experiment.heads for runs in (experiment.of(head), experiment.all_of(head))}
    over = f"{min(counts)} seeds" if len(counts) == 1 else "seeds"
    title = "Results of one seed" if counts == {1} else f"Results: median and range over {over}"
    notes = tuple(seed_notes([experiment])) if len(counts) > 1 else ()
    return Table("outcome", title, 1, _cells(("head",), [found.title, "train loss", "NC1"], rows), DataFrame(), notes)


def outcomes_table(experiments: Sequence[Experiment]) -> Table:
    """The outcome of every experiment, heads as columns."""
    rows = {}
    for experiment in experiments:
        found = outcome(experiment)
        rows[experiment.name, found.title] = {head: short_text(over, percent=found.percent) for head, over in found.spreads.items()}
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    cells = _cells(("experiment", "result"), heads, rows)
    return Table("outcomes", "Results: median and range over seeds", 2, cells, DataFrame())


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


def _same_or_each(texts: Mapping[str, str], of_all: str = "") -> str:
    """The text that all heads share, or each head with its own."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values())) + of_all
    return ", ".join(f"{head} {text}" for head, text in texts.items())


def number_text(value: float, *, percent: bool = False) -> str:
    """Two decimals for per cent, otherwise four significant digits; `never` for infinity."""
    if math.isinf(value):
        return NEVER
    return f"{value:.2f}" if percent else f"{value:.4g}"


def spread_text(over: Spread | None, *, percent: bool = False) -> str:
    """`median (low to high)`, or the value of the only seed."""
    if over is None:
        return NOTHING
    median, low, high = (number_text(value, percent=percent) for value in over[:3])
    return median if over.seeds == 1 else f"{median} ({low} to {high})"


def short_text(over: Spread | None, *, percent: bool = False) -> str:
    """`median (low to high)`, or the value on which all seeds agree."""
    return number_text(over.median, percent=percent) if over and over.low == over.high else spread_text(over, percent=percent)


def _at_epoch_text(over: Spread, epoch: int) -> str:
    text = spread_text(over, percent=True)
    return text if set(over.epochs) == {epoch} else f"{text} [epoch {span(over.epochs)}]"


def _fields(over: Spread) -> dict[str, Any]:
    measured_at = {"measured_at": span(over.epochs)} if over.epochs else {}
    return {**measured_at, "median": over.median, "low": over.low, "high": over.high, "seeds": over.seeds}


def _cells(stub: Sequence[str], columns: Sequence[Any], rows: Mapping[tuple[str, ...], Mapping[Any, str]]) -> DataFrame:
    """A row of text for each key of `rows`, which are its headings; a hyphen where it has no text."""
    content = [[*key, *(texts.get(column, NOTHING) for column in columns)] for key, texts in rows.items()]
    return DataFrame(content, columns=[*stub, *columns], dtype=object)


def _table(
    name: str,
    title: str,
    cells: DataFrame,
    numbers: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
    *,
    stub: int = 2,
    bold: frozenset[tuple[int, int]] = frozenset(),
) -> Table | None:
    """The table; None if it has no rows."""
    # Objects, because a column of integers with a gap would become one of floats.
    return None if cells.empty else Table(name, title, stub, cells, DataFrame(numbers, dtype=object), tuple(notes), bold)


def markdown(table: Table) -> str:
    """The table in Markdown, with its title above and its notes below."""
    cells = table.cells.map(_escape_markdown).to_numpy()
    for place in table.bold:
        cells[place] = f"**{cells[place]}**"
    rows = [[_escape_markdown(column) for column in _flat_columns(table)], ["---"] * cells.shape[1], *cells]
    lines = [f"**{_escape_markdown(table.title)}**", "", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, *(line for note in table.notes for line in ("", _escape_markdown(note)))]) + "\n"


def plain_text(table: Table) -> str:
    """The table for a terminal, with its title above and its notes below."""
    rows = [_flat_columns(table), *table.cells.to_numpy()]
    lines = aligned([[one_line(text) for text in row] for row in rows])
    return "\n".join([one_line(table.title), "", *lines, "", *map(one_line, table.notes)]) + "\n"


def csv_text(table: Table) -> str:
    """The numbers as comma-separated values.

    A spreadsheet takes text that begins with =, +, - or @ for a formula and may run it, so such text begins with an apostrophe.
    """
    return table.numbers.map(_no_formula).to_csv(index=False, lineterminator="\n")


def latex(table: Table) -> str:
    """The table for a paper that uses the packages booktabs and amsmath."""
    cells = table.cells.map(_latex_cell)
    for row, column in table.bold:
        # \boldmath reaches into the formula that a median with its range is.
        cells.iat[row, column] = rf"{{\boldmath\bfseries {cells.iat[row, column]}}}"
    cells = cells.rename(columns=escape_latex)
    text = cells.style.hide(axis="index").to_latex(
        column_format="l" * table.stub + "c" * (cells.shape[1] - table.stub),
        position_float="centering",
        hrules=True,
        multicol_align="c",
        label=f"tab:{table.name}",
        caption=f"{escape_latex(table.title)}.",
    )
    end = r"\end{table}"
    notes = "".join(f"\\par\\smallskip{{\\footnotesize {escape_latex(note)}}}\n" for note in table.notes)
    return "% needs booktabs and amsmath\n" + text.replace(end, notes + end)


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is, on one line."""
    return one_line(text).translate(_LATEX)


def _latex_cell(text: str) -> str:
    """A median and its range as the paper sets them; any other text as it is."""
    found = MEDIAN_AND_RANGE.fullmatch(text)
    if found is None:
        return escape_latex(text)
    median, low, high = (
        re.sub(r"e([+-]\d+)", lambda e: rf"{{\cdot}}10^{{{int(e[1])}}}", part or "") for part in found.groups()[:3]
    )
    formula = (rf"{median}\,^{{{high}}}_{{{low}}}" if low else median).replace(NEVER, rf"\text{{{NEVER}}}")
    return f"${formula}${found[4].translate(_LATEX)}"


def _flat_columns(table: Table) -> list[str]:
    return [": ".join(filter(None, name)) if isinstance(name, tuple) else name for name in table.cells.columns]


def _escape_markdown(text: str) -> str:
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", plain)


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value
