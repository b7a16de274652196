"""A table before it is written in some format, and numbers and their spread as its cells."""

import math
from dataclasses import dataclass, replace

from guided_collapse.experiments.records.text import one_line
from guided_collapse.experiments.report.summaries import AtEpoch, Spread

NOTHING = "-"
NEVER = "never"
LARGE = 1000

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


CsvRow = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Cell:
    """Text as people read it, and the same in LaTeX; `best` is set in bold."""

    text: str
    latex: str
    best: bool = False

    def as_best(self) -> "Cell":
        """The same cell, marked."""
        return replace(self, best=True)


@dataclass(frozen=True)
class Table:
    """Cells under headings, for people, and the same numbers as rows of CSV, one in a field, for programs.

    Attributes:
        name: of the files.
        title: one line.
        stub: how many columns at the left are headings of the row.
        columns: headings.
        groups: headings over several columns: the text and how many columns it spans; they cover the columns right of the stub.
        rows: a cell for each column.
        notes: what a reader must know.
        csv_rows: rows for CSV, all with the same fields.
    """

    name: str
    title: str
    stub: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    csv_rows: tuple[CsvRow, ...]
    groups: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is, on one line."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def words(text: str) -> Cell:
    """A cell of plain text."""
    return Cell(one_line(text), escape_latex(text))


def number_text(value: float, *, percent: bool = False) -> str:
    """A number as text: two decimals for per cent, else four significant digits; `never` for infinity."""
    if math.isinf(value):
        return NEVER
    return f"{value:.2f}" if percent else f"{value:.4g}"


def spread_text(spread: Spread, *, percent: bool = False) -> str:
    """`median (low to high)`, or the one value there is."""
    median = number_text(spread.median, percent=percent)
    if spread.count == 1:
        return median
    return f"{median} ({number_text(spread.low, percent=percent)} to {number_text(spread.high, percent=percent)})"


def short_text(spread: Spread | None, *, percent: bool = False) -> str:
    """`median (low to high)`, or the value that all seeds agree on."""
    if spread is None:
        return NOTHING
    return number_text(spread.median, percent=percent) if spread.low == spread.high else spread_text(spread, percent=percent)


def spread_latex(spread: Spread, *, percent: bool = False) -> str:
    r"""`$median\,^{high}_{low}$`, as the paper sets it."""
    median, low, high = (_latex(number_text(value, percent=percent)) for value in (spread.median, spread.low, spread.high))
    return f"${median}$" if spread.count == 1 else rf"${median}\,^{{{high}}}_{{{low}}}$"


def spread_cell(spread: Spread | None, *, percent: bool = False) -> Cell:
    """A cell with median and range."""
    if spread is None:
        return words(NOTHING)
    return Cell(spread_text(spread, percent=percent), spread_latex(spread, percent=percent))


def at_epoch_cell(found: AtEpoch | None, epoch: int | None, *, percent: bool = False) -> Cell:
    """A cell with median and range, and with the epochs in brackets if they are not the one that was asked for."""
    if found is None:
        return words(NOTHING)
    cell = spread_cell(found.spread, percent=percent)
    if epoch is None or set(found.epochs) == {epoch}:
        return cell
    bracket = f" [epoch {epochs_text(found.epochs)}]"
    return Cell(cell.text + bracket, cell.latex + bracket)


def epochs_text(epochs: tuple[int, ...]) -> str:
    """`30`, or `30 to 50` where runs differ."""
    low, high = min(epochs), max(epochs)
    return str(low) if low == high else f"{low} to {high}"


def _latex(text: str) -> str:
    if text == NEVER:
        return r"\text{never}"
    mantissa, _, exponent = text.partition("e")
    return rf"{mantissa}{{\cdot}}10^{{{int(exponent)}}}" if exponent else text


def amount(value: float) -> str:
    """Milliseconds or megabytes: of a thousand and more, fractions say nothing."""
    return f"{value:,.0f}" if value >= LARGE else number_text(value)


def spread_values(spread: Spread) -> dict[str, float]:
    """Median and range by name."""
    return {"median": spread.median, "low": spread.low, "high": spread.high}


def spread_fields(spread: Spread) -> CsvRow:
    """Median, range and number of seeds as fields of a row."""
    return {**spread_values(spread), "seeds": spread.count}
