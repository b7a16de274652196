"""A table before it is written in some format."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from guided_collapse.records.text import one_line

NOTHING = "-"

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
    """Cells under headings, for people, and the same figures as records, one number in a field, for programs.

    Attributes:
        name: of the files.
        title: one line.
        stub: how many columns at the left are headings of the row.
        columns: headings.
        groups: headings over several columns: the text and how many columns it spans; they cover the columns right of the stub.
        rows: a cell for each column.
        notes: what a reader must know.
        records: rows for CSV, all with the same fields.
    """

    name: str
    title: str
    stub: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    records: tuple[Mapping[str, str | int | float | None], ...]
    groups: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it is, on one line."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def words(text: str) -> Cell:
    """A cell of plain text."""
    return Cell(one_line(text), escape_latex(text))
