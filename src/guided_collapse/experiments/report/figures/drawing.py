"""What all figures for print share: their style, a curve with its band, the legend, and the files."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

from guided_collapse.experiments.records.declared.quantities import Quantity
from guided_collapse.experiments.records.text import shortened
from guided_collapse.experiments.report.styles import HeadStyle, label
from guided_collapse.experiments.report.summaries import Curve

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    # Fonts that publishers take.
    "pdf.fonttype": 42,
}
DOTS_PER_INCH = 200
LONGEST_NAME = 120  # letters in the width of a figure
SHORT_NAME = 30  # letters in a quarter of it
NARROW = 20  # up to this ratio of its ends, a logarithmic axis is marked as a linear one


@contextmanager
def print_style() -> Iterator[None]:
    """Figures that are made and written inside look as they should in print; a letter that the font lacks is no warning."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def plain(text: str, most: int = LONGEST_NAME) -> str:
    """Text that matplotlib sets as it is: on one line for which there is room, and no dollar begins a formula."""
    return shortened(text, most).replace("$", r"\$")


def draw_curve(axes: Axes, curve: Curve, style: HeadStyle) -> None:
    """The median as a line with about eight markers, the range as a band."""
    axes.fill_between(curve.x, curve.low, curve.high, color=style.light, alpha=0.2, linewidth=0)
    axes.plot(
        curve.x,
        curve.median,
        color=style.light,
        linestyle=style.print_dash,
        linewidth=1.2,
        marker=style.print_marker,
        markersize=3,
        markevery=max(1, len(curve.x) // 8),
    )


def draw_references(axes: Axes, values: Sequence[float]) -> None:
    """What theory gives, as dotted lines."""
    for value in values:
        axes.axhline(value, color="black", linestyle=":", linewidth=0.8)


def logarithmic(axes: Axes, curves: Sequence[Curve]) -> None:
    """A logarithmic axis, if there is anything that it can show."""
    if any((curve.median > 0).any() for curve in curves):
        axes.set_yscale("log", nonpositive="mask")
        lowest = min(float(np.min(curve.median[curve.median > 0])) for curve in curves if (curve.median > 0).any())
        axes.set_ylim(bottom=max(axes.get_ylim()[0], lowest / 3))
        bottom, top = axes.get_ylim()
        if top < NARROW * bottom:
            # Plain numbers say more than multiples of a power of ten.
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_locator(NullLocator())


def draw_quantity(
    axes: Axes,
    curves: Mapping[str, Curve | None],
    styles: Mapping[str, HeadStyle],
    quantity: Quantity,
    *,
    title: str,
    references: Sequence[float],
) -> None:
    """A quantity over epochs, with a curve for each head that has measured it, on the axis that it is declared with."""
    known = {head: curve for head, curve in curves.items() if curve is not None}
    for head, curve in known.items():
        draw_curve(axes, curve, styles[head])
    finish(axes, title, "epoch", empty=not known)
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if known:
        draw_references(axes, references)
    if quantity.log:
        logarithmic(axes, list(known.values()))


def finish(axes: Axes, title: str, horizontal: str, *, empty: bool) -> None:
    """Title and horizontal axis; a panel with nothing in it says so."""
    axes.set_title(title)
    axes.set_xlabel(horizontal)
    if empty:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="gray")


def draw_legend(figure: Figure | SubFigure, styles: Mapping[str, HeadStyle], *, reference: bool = False) -> None:
    """The heads, and the dotted line, under the panels."""
    handles = [
        Line2D(
            [],
            [],
            color=style.light,
            linestyle=style.print_dash,
            linewidth=1.2,
            marker=style.print_marker,
            markersize=3,
            label=plain(label(head), SHORT_NAME),
        )
        for head, style in styles.items()
    ]
    if reference:
        handles.append(Line2D([], [], color="black", linestyle=":", linewidth=0.8, label="theory"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), handlelength=4)


def as_files(figure: Figure, name: str) -> dict[str, bytes]:
    """The figure as PDF and PNG, by file name; the same figure gives the same PDF."""
    # The layout is worked out once, and each file is drawn once: savefig would draw everything twice for each.
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    pdf, png = io.BytesIO(), io.BytesIO()
    FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    figure.set_dpi(DOTS_PER_INCH)
    FigureCanvasAgg(figure).print_png(png)  # type: ignore[no-untyped-call]
    return {f"{name}.pdf": pdf.getvalue(), f"{name}.png": png.getvalue()}
