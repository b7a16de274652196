"""All tables of a report, and their text as Markdown, CSV and LaTeX, and for a terminal."""

import csv
import io
import re
from collections.abc import Sequence

from guided_collapse.experiments.records.declared.quantities import TEST_TOP1, TRAIN_TOP1
from guided_collapse.experiments.records.schema import CostRecord, SearchRecord
from guided_collapse.experiments.records.text import aligned, one_line
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.tables.accuracy import accuracy_table
from guided_collapse.experiments.report.tables.cost import cost_table, memory_table
from guided_collapse.experiments.report.tables.counts import counts_table
from guided_collapse.experiments.report.tables.pairs import pairs_table
from guided_collapse.experiments.report.tables.reaching import reaching_table
from guided_collapse.experiments.report.tables.search import search_table
from guided_collapse.experiments.report.tables.summary import final_table, runs_table
from guided_collapse.experiments.report.tables.table import Cell, Table, escape_latex


def all_tables(
    experiments: Sequence[Experiment],
    costs: Sequence[CostRecord],
    epochs: Sequence[int],
    searches: Sequence[SearchRecord] = (),
) -> list[Table]:
    """The tables for which there are numbers."""
    tables = [
        accuracy_table(experiments, TRAIN_TOP1, epochs),
        accuracy_table(experiments, TEST_TOP1, epochs),
        pairs_table(experiments),
        final_table(experiments),
        reaching_table(experiments, "epochs"),
        reaching_table(experiments, "seconds"),
        search_table(searches),
        cost_table(costs),
        memory_table(costs),
        counts_table(costs),
        runs_table(experiments) if experiments else None,
    ]
    return [table for table in tables if table is not None]


def markdown(table: Table) -> str:
    """The table in Markdown, with its title above and its notes below."""
    lines = [f"**{_escape_markdown(table.title)}**", "", _markdown_row(_flat_columns(table))]
    lines.append(_markdown_row(["---"] * len(table.columns), escape=False))
    for row in table.rows:
        cells = [f"**{_escape_markdown(cell.text)}**" if cell.best else _escape_markdown(cell.text) for cell in row]
        lines.append(_markdown_row(cells, escape=False))
    lines += [line for note in table.notes for line in ("", _escape_markdown(note))]
    return "\n".join(lines) + "\n"


def plain_text(table: Table) -> str:
    """The table for a terminal, with its title above and its notes below."""
    lines = [[one_line(column) for column in _flat_columns(table)], *([cell.text for cell in row] for row in table.rows)]
    return "\n".join([one_line(table.title), "", *aligned(lines), "", *map(one_line, table.notes)]) + "\n"


def csv_text(table: Table) -> str:
    """The table's numbers as comma-separated values, every digit of every number.

    A spreadsheet takes text that begins with =, +, - or @ for a formula and may run it, so such text begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table.csv_rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in record.items()} for record in table.csv_rows)
    return text.getvalue()


def _no_formula(value: str | int | float | None) -> str | int | float | None:
    return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value


def latex(table: Table) -> str:
    """The table for a paper that uses the packages booktabs and amsmath."""
    body = [rf"\caption{{{escape_latex(table.title)}.}}", rf"\label{{tab:{table.name}}}", r"\centering"]
    body.append(rf"\begin{{tabular}}{{{'l' * table.stub}{'c' * (len(table.columns) - table.stub)}}}")
    body.append(r"\toprule")
    if table.groups:
        spans = [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(text)}}}" for text, width in table.groups]
        body.append(" & ".join([""] * table.stub + spans).strip() + r" \\")
        body.append(" ".join(_rules(table)))
    body.append(" & ".join(escape_latex(column) for column in table.columns) + r" \\")
    body.append(r"\midrule")
    body += [" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows]
    body += [r"\bottomrule", r"\end{tabular}"]
    body += [rf"\par\smallskip{{\footnotesize {escape_latex(note)}}}" for note in table.notes]
    return "\n".join(["% needs booktabs and amsmath", r"\begin{table}", *(f"  {line}" for line in body), r"\end{table}"]) + "\n"


def _flat_columns(table: Table) -> list[str]:
    over = [""] * table.stub + [text for text, width in table.groups for _ in range(width)]
    over += [""] * (len(table.columns) - len(over))
    return [f"{group}: {column}" if group else column for group, column in zip(over, table.columns, strict=True)]


def _markdown_row(cells: Sequence[str], *, escape: bool = True) -> str:
    return "| " + " | ".join(_escape_markdown(cell) if escape else cell for cell in cells) + " |"


def _escape_markdown(text: str) -> str:
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", plain)


def _rules(table: Table) -> list[str]:
    rules, start = [], table.stub + 1
    for _, width in table.groups:
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return rules


def _latex_cell(cell: Cell) -> str:
    # \boldmath reaches into the formula that a median with its range is.
    return rf"{{\boldmath\bfseries {cell.latex}}}" if cell.best else cell.latex
