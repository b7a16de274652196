"""HTML from text that may hold anything."""

from collections.abc import Iterable, Sequence
from html import escape

from guided_collapse.report.table import Cell, Table, one_line


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
            parts.append(f'{attribute}="{escape(value)}"')
    return f"<{' '.join(parts)}>{''.join(children)}</{name}>"


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
    head += tag("tr", *(tag("th", text(column), scope="col") for column in table.columns[without:]))
    body = [tag("tr", *_cells(row[without:], stub), class_="paper" if _is_paper(row) else False) for row in table.rows]
    whole = tag("table", tag("caption", text(table.title)), tag("thead", head), tag("tbody", *body))
    scroll = tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=one_line(table.title))
    return tag(
        "div", scroll, *(tag("p", text(note), class_="note") for note in table.notes), class_="table", id=f"table-{table.name}"
    )


def _cells(row: Sequence[Cell], stub: int) -> list[str]:
    shown = [tag("strong", text(cell.text)) if cell.best else text(cell.text) for cell in row]
    return [tag("th", cell, scope="row") if place < stub else tag("td", cell) for place, cell in enumerate(shown)]


def _is_paper(row: Sequence[Cell]) -> bool:
    return len(row) > 1 and row[1].text == "paper"
