"""The part of the page that shows what heads cost, as bars that need no script."""

import math
from collections.abc import Mapping, Sequence

from guided_collapse.records.schema import CostRecord
from guided_collapse.report.looks import Look, label
from guided_collapse.report.page.markup import table_html, tag, text
from guided_collapse.report.passes import Pass, notation, passes
from guided_collapse.report.tables.numbers import amount
from guided_collapse.report.tables.table import Table

NARROWEST = 4.0  # per cent of the width, so that the shortest bar can be seen


def cost_section(costs: Sequence[CostRecord], tables: Sequence[Table], looks: Mapping[str, Look]) -> str:
    """Forward and backward times in the paper's notation, and the tables of times and memory; nothing if none were recorded."""
    if not costs:
        return ""
    places = {head: place for place, head in enumerate(looks)}
    charts = [_chart(cost, places) for cost in costs if passes(cost)]
    says = "Time of a training step for each head, forward (F) and backward (B), on a logarithmic scale."
    return tag(
        "section",
        tag("h2", "Cost"),
        tag("p", says),
        tag("div", *charts, class_="panels"),
        *(table_html(table) for table in tables),
        id="cost",
    )


def _chart(cost: CostRecord, places: Mapping[str, int]) -> str:
    bars = passes(cost)
    logarithms = [math.log10(bar.milliseconds) for bar in bars]
    lowest, reach = min(logarithms), max(max(logarithms) - min(logarithms), 1e-9)
    rows = [
        _bar(bar, places[bar.head], NARROWEST + (100 - NARROWEST) * (logarithm - lowest) / reach)
        for bar, logarithm in zip(bars, logarithms, strict=True)
    ]
    key = tag("p", text("; ".join(notation(cost))), class_="note")
    return tag("figure", tag("h4", text(cost.experiment)), tag("ul", *rows, class_="bars"), key, class_="cost")


def _bar(bar: Pass, place: int, width: float) -> str:
    said = f"{label(bar.head)}, {'backward' if bar.backward else 'forward'}"
    drawn = tag(
        "span",
        tag("span", style=f"width:{width:.1f}%;--colour:var(--head-{place})", class_="backward" if bar.backward else "forward"),
        class_="track",
        aria_hidden="true",
    )
    name = tag("abbr", text(bar.notation), title=said)
    return tag("li", name, drawn, tag("span", text(f"{amount(bar.milliseconds)} ms")), data_head=str(place))
