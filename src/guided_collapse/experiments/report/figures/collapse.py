"""Figures to look at while one works: of one measurement, and of a table of runs."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from guided_collapse.experiments.report.experiment import theory
from guided_collapse.experiments.report.figures.drawing import draw_legend, draw_quantity, draw_references, plain, print_style
from guided_collapse.experiments.report.run_table import epochs_of, quantities_of
from guided_collapse.experiments.report.styles import HeadStyle, in_order, styles_of
from guided_collapse.experiments.report.summaries import over_runs
from guided_collapse.metrics.declared import BEST_MARGIN, entries

if TYPE_CHECKING:
    from pandas import DataFrame

PANELS_IN_A_ROW = 4
PANEL = (2.3, 1.9)
"""Width and height, in inches."""
BAR_HEIGHT = 0.24


class Picture(Figure):
    """A figure that a notebook shows even where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with print_style():
            self.savefig(content, format="png", dpi=150)
        return content.getvalue()


def result_figure(values: Mapping[str, float], margins: object) -> Figure:
    """The metrics of one measurement that are 0 at collapse, as bars on a logarithmic axis, and the sorted margins.

    Args:
        values: the finite numbers of a result, by name.
        margins: of every sample, sorted; anything but a list with entries is no panel.
    """
    shown = {entry.key: entry.metric.label for entry in entries() if entry.metric.at_collapse == "0" and entry.key in values}
    with print_style():
        figure = Picture(figsize=(9, 1 + BAR_HEIGHT * len(shown)), layout="constrained")
        known = isinstance(margins, list) and bool(margins)
        panels = figure.subplots(1, 1 + known, squeeze=False)[0]
        _bars(panels[0], {shown[name]: values[name] for name in shown})
        if isinstance(margins, list) and margins:
            panels[1].plot(np.linspace(0, 100, len(margins)), margins, color=styles_of(["nearest-etf"])["nearest-etf"].light)
            draw_references(panels[1], [values[BEST_MARGIN.name]] if BEST_MARGIN.name in values else [])
            panels[1].set_title("Cosine margins")
            panels[1].set_xlabel("% of samples; dotted: at the best frame")
    return figure


def _bars(axes: Axes, values: Mapping[str, float]) -> None:
    """A bar for each value; one that is 0 has no place on a logarithmic axis, and says so."""
    ends = [value for value in values.values() if value > 0]
    left = min(ends, default=1.0) / 5
    axes.barh(range(len(values)), [max(value - left, 0.0) for value in values.values()], left=left, color="#0072b2")
    for place, value in enumerate(values.values()):
        axes.annotate(f"{value:.3g}", (max(value, left), place), xytext=(3, 0), textcoords="offset points", va="center")
    axes.set_xscale("log")
    axes.set_xlim(left=left, right=max(ends, default=1.0) * 4)
    axes.set_yticks(range(len(values)), [plain(label) for label in values])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("0 at collapse")


def runs_figure(table: "DataFrame") -> Figure:
    """The curves of all experiments of a table of runs, one below the other; runs that failed are in no curve.

    Raises:
        ValueError: if there is nothing to draw.
    """
    table = table[table["state"] != "failed"]
    quantities = quantities_of(table)
    if not quantities:
        raise ValueError("a table of runs must have a measured epoch of a run that did not fail; it has none. Train longer.")
    experiments = list(dict.fromkeys(table["experiment"]))
    styles = styles_of(table["head"])
    columns = min(PANELS_IN_A_ROW, len(quantities))
    rows = -(-len(quantities) // columns)
    with print_style():
        figure = Picture(figsize=(PANEL[0] * columns, (0.5 + PANEL[1] * rows) * len(experiments)), layout="constrained")
        parts = figure.subfigures(len(experiments), 1, squeeze=False)[:, 0]
        for part, name in zip(parts, experiments, strict=True):
            part.suptitle(plain(name), fontsize=9)
            _panels(part, table[table["experiment"] == name], styles, rows, columns)
    return figure


def _panels(part: SubFigure, table: "DataFrame", styles: Mapping[str, HeadStyle], rows: int, columns: int) -> None:
    heads = in_order(table["head"])
    runs = {head: [epochs_of(run) for _, run in table[table["head"] == head].groupby("seed")] for head in heads}
    known_of_runs = set(zip(table["num_classes"], table["feature_dim"], table["loss_lower_bound"], strict=True))
    for place, quantity in enumerate(quantities_of(table).values(), 1):
        known = {theory(quantity, *of_run) for of_run in known_of_runs}
        draw_quantity(
            part.add_subplot(rows, columns, place),
            {head: over_runs(found, quantity) for head, found in runs.items()},
            styles,
            quantity,
            title=quantity.title,
            references=sorted(value for value in known if value is not None and np.isfinite(value)),
        )
    draw_legend(part, {head: styles[head] for head in heads}, reference=True)
