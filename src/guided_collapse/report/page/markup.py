"""HTML from text that may hold anything."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from guided_collapse.records.text import one_line
from guided_collapse.report.tables.table import Cell, Table

# Elements that hold nothing and are not closed.
VOID = frozenset({"br", "input"})


def tag(name: str, *children: str, **attributes: str | bool) -> str:
    """An element. Children are HTML already; the values of attributes are text, and True stands for an attribute without one.

    A trailing underscore is dropped from the name of an attribute, and others become hyphens: `class_`, `aria_label`.
    """
    parts = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(attribute)
        elif value is not False:
            parts.append(f'{attribute}="{text(value)}"')
    return f"<{' '.join(parts)}>" if name in VOID else f"<{' '.join(parts)}>{''.join(children)}</{name}>"


def text(value: object) -> str:
    """Text as HTML, on one line."""
    return escape(one_line(str(value)))


def listing(items: Iterable[str], *, class_: str | bool = False) -> str:
    """Text as a list."""
    return tag("ul", *(tag("li", text(item)) for item in items), class_=class_)


def pairs(entries: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for."""
    return tag("dl", *(tag("div", tag("dt", text(name)), tag("dd", text(value))) for name, value in entries))


def table_html(table: Table, *, without: int = 0) -> str:
    """A table that scrolls sideways by itself, with its title and its notes.

    Args:
        table: what to show.
        without: how many columns at the left to leave out, where the place already says them.
    """
    stub = table.stub - without
    over = [tag("td", colspan=str(stub))] + [
        tag("th", text(name), colspan=str(width), scope="colgroup") for name, width in table.groups
    ]
    head = tag("tr", *over) if table.groups else ""
    columns = enumerate(table.columns[without:])
    head += tag(
        "tr", *(tag("th", text(column), scope="col", class_="stub" if place < stub else False) for place, column in columns)
    )
    body = [tag("tr", *_cells(row[without:], stub), class_="paper" if _is_paper(table, row) else False) for row in table.rows]
    # The title stands outside, since a caption would be no wider than the table.
    title = one_line(table.title)
    whole = tag("table", tag("thead", head), tag("tbody", *body), aria_label=title)
    scroll = tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=title)
    notes = [tag("p", text(note), class_="note") for note in table.notes]
    return tag("div", tag("h4", text(title)), scroll, *notes, class_="table", data_table=table.name)


def _cells(row: Sequence[Cell], stub: int) -> list[str]:
    shown = [text(cell.text) if place < stub else _inside(cell) for place, cell in enumerate(row)]
    return [tag("th", cell, scope="row") if place < stub else tag("td", cell) for place, cell in enumerate(shown)]


def _inside(cell: Cell) -> str:
    # The range under the median, and under that what else there is, so that columns stay narrow.
    found = re.fullmatch(r"(\S+) (\(.+ to [^)]+\))(.*)", cell.text)
    shown = text(cell.text) if found is None else f"{text(found[1])} {tag('small', text(found[2]))}"
    if found is not None and found[3]:
        shown += f" {tag('small', text(found[3].removeprefix(',')))}"
    return tag("strong", shown) if cell.best else shown


def _is_paper(table: Table, row: Sequence[Cell]) -> bool:
    return "source" in table.columns and row[table.columns.index("source")].text == "paper"
