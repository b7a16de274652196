"""Tables and numbers as text: for a terminal, and as Markdown, CSV and LaTeX."""

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pandas import DataFrame

from guided_collapse.experiments.records import aligned, one_line
from guided_collapse.experiments.report.summaries import Spread

COLUMNS = 100  # the width of a terminal
NOTHING, NEVER = "-", "never"
NUMBER = rf"[+-]?\d[\d.]*(?:e[+-]\d+)?|{NEVER}"
# Matches the text of a cell: its median, the range of the median, and the rest.
MEDIAN_AND_RANGE = re.compile(rf"({NUMBER})(?: \(({NUMBER}) to ({NUMBER})\))?(|[ ,].*)")
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "{}$&#_%"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


class Table(NamedTuple):
    """A table, as text for readers and as numbers for programs."""

    name: str  # the name of its files, without suffix
    title: str
    cells: DataFrame  # text; columns have two levels if some headings span several columns
    numbers: Sequence[Mapping[str, Any]] = ()  # one row per cell, in full precision
    notes: Sequence[str] = ()
    stub: int = 2  # number of leading columns that are row headings
    bold: frozenset[tuple[int, int]] = frozenset()  # (row, column) of bold cells

    @property
    def columns(self) -> list[str]:
        """The headings of the columns."""
        return list(self.cells.columns.get_level_values(-1))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings that span columns, each with the number of columns that it spans."""
        over = self.cells.columns.get_level_values(0)[self.stub :] if self.cells.columns.nlevels > 1 else []
        return [(heading, len(list(spanned))) for heading, spanned in itertools.groupby(over)]


def number_text(value: float, *, percent: bool = False) -> str:
    """Returns a percentage with two decimals, and other numbers with four significant digits; `never` for infinity."""
    return NEVER if math.isinf(value) else f"{value:.2f}" if percent else f"{value:.4g}"


def spread_text(over: Spread | None, *, percent: bool = False) -> str:
    """Returns `median (low to high)`, only the value for a single seed, or a hyphen for None."""
    if over is None:
        return NOTHING
    median, low, high = (number_text(value, percent=percent) for value in over[:3])
    return median if over.seeds == 1 else f"{median} ({low} to {high})"


def short_text(over: Spread | None, *, percent: bool = False) -> str:
    """Returns `median (low to high)`, or the value if all seeds agree."""
    return number_text(over.median, percent=percent) if over and over.low == over.high else spread_text(over, percent=percent)


def markdown(table: Table) -> str:
    """Returns the table in Markdown, with its title above and its notes below."""
    cells = table.cells.map(_escape_markdown).to_numpy(dtype=object)
    for place in table.bold:
        cells[place] = f"**{cells[place]}**"
    rows = [[_escape_markdown(column) for column in _flat_columns(table)], ["---"] * cells.shape[1], *cells]
    lines = [f"**{_escape_markdown(table.title)}**", "", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, *(line for note in table.notes for line in ("", _escape_markdown(note)))]) + "\n"


def plain_text(table: Table) -> str:
    """Returns the table for a terminal, with its title above and its notes below."""
    rows = [[one_line(text) for text in row] for row in (_flat_columns(table), *table.cells.to_numpy())]
    return "\n".join([one_line(table.title), "", *aligned(rows), "", *map(one_line, table.notes)]) + "\n"


def wrapped(text: str, separator: str = "\n") -> str:
    """Returns text in lines of at most 100 characters, separator included, unless a word is longer."""
    lines = textwrap.wrap(text, COLUMNS - len(separator), break_long_words=False, break_on_hyphens=False)
    return separator.join(lines)


def csv_text(table: Table) -> str:
    """Returns the numbers of the table as comma-separated values."""

    def harmless(value: Any) -> Any:
        # A spreadsheet would treat text that starts like this as a formula and might run it.
        return f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value

    rows = [{name: harmless(value) for name, value in row.items()} for row in table.numbers]
    # With dtype object, integers with missing values stay integers.
    return DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def latex(table: Table) -> str:
    """Returns the table in LaTeX, for the packages booktabs and amsmath."""
    cells = table.cells.map(_latex_cell).rename(columns=escape_latex)
    for row, column in table.bold:
        # \boldmath applies to the formula of a median and its range.
        cells.iat[row, column] = rf"{{\boldmath\bfseries {cells.iat[row, column]}}}"
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
    """Returns text on one line, escaped for LaTeX."""
    return one_line(text).translate(_LATEX)


def _latex_cell(text: str) -> str:
    """Returns a median with its range as a formula in the style of the paper; other text is only escaped."""
    found = MEDIAN_AND_RANGE.fullmatch(text)
    if found is None:
        return escape_latex(text)
    median, low, high, rest = found.groups()
    formula = rf"{median}\,^{{{high}}}_{{{low}}}" if low else median
    formula = re.sub(r"e([+-]\d+)", lambda e: rf"{{\cdot}}10^{{{int(e[1])}}}", formula)
    formula = formula.replace(NEVER, rf"\text{{{NEVER}}}")
    return f"${formula}${rest.translate(_LATEX)}"


def _flat_columns(table: Table) -> list[str]:
    return [": ".join(filter(None, name)) if isinstance(name, tuple) else name for name in table.cells.columns]


def _escape_markdown(text: str) -> str:
    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", plain)
