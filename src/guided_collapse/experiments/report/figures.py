"""Matplotlib figures: for print, in the form of the paper's figures, and `plot_collapse` for interactive work."""

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter
from pandas import DataFrame

from guided_collapse.experiments.files import checksum
from guided_collapse.experiments.records import EQUINORM, MARGIN, NC1, NC3, TEST_TOP1, TRAIN_LOSS, TRAIN_TOP1, shortened
from guided_collapse.experiments.report.styles import HeadStyle, in_order, label, styles_of
from guided_collapse.experiments.report.summaries import COLUMNS, NEEDED, Experiment, curves_over_seeds, theory
from guided_collapse.metrics.declared import BEST_MARGIN, metrics_of_results

if TYPE_CHECKING:
    from guided_collapse.metrics.result import CollapseResult

THEORY: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 0.8}
PANELS_PER_ROW = 4
LONGEST_NAME, SHORT_NAME = 120, 30  # number of characters that fit the width of a figure, and a quarter of the width

Styles = Mapping[str, HeadStyle]


def plot_collapse(measured: "CollapseResult | DataFrame") -> Figure:
    """Returns a matplotlib figure of a result (metrics that are 0 at collapse, and margins) or of runs (curves over epochs).

    Curves are medians over seeds with the range as a band, one panel per metric; dotted lines are theoretical values. Drop rows or
    columns of the DataFrame to show less.

    Args:
        measured: a `CollapseResult`, or the DataFrame from `load_runs`.

    Returns:
        A figure that notebooks display; `figure.savefig("collapse.pdf")` writes it.

    Raises:
        TypeError: if `measured` is neither.
        ValueError: if the DataFrame lacks columns or measurements that the figure needs.

    Example:
        >>> import torch
        >>> from guided_collapse import measure_collapse
        >>> from guided_collapse.experiments.report import plot_collapse
        >>> labels = torch.arange(60) % 3
        >>> result = measure_collapse(torch.eye(3)[labels] + 0.1 * torch.randn(60, 3), labels, torch.eye(3))
        >>> [panel.get_title() for panel in plot_collapse(result).axes]
        ['0 at collapse', 'Cosine margins']
    """
    if isinstance(measured, DataFrame):
        return _runs_figure(measured)
    # Imported here because a table of runs needs no torch.
    from guided_collapse.metrics.result import CollapseResult

    if isinstance(measured, CollapseResult):
        return _result_figure(measured)
    raise TypeError(f"plot_collapse takes a CollapseResult or the DataFrame from load_runs(folder); got {type(measured).__name__}.")


class Picture(Figure):
    """A figure that notebooks display even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with print_style():
            self.savefig(content, format="png", dpi=150)
        return content.getvalue()


def _result_figure(result: "CollapseResult") -> Figure:
    values = result.scalars()
    margins: Any = result.to_dict().get("cosine_margins")
    at_zero = {metric.label: metric.name for metric in metrics_of_results() if metric.at_collapse == "0"}
    shown = {label: values[key] for label, key in at_zero.items() if key in values}
    with print_style():
        figure = Picture(figsize=(9, 1 + 0.24 * len(shown)), layout="constrained")
        bars, *others = figure.subplots(1, 2 if margins else 1, squeeze=False)[0]
        # Names include the values because a logarithmic axis cannot show 0.
        names = [f"{plain(name)}: {value:.3g}" for name, value in shown.items()]
        bars.barh(names, list(shown.values()), log=True, color="#0072b2")
        bars.invert_yaxis()
        bars.grid(visible=False, axis="y")
        bars.set_title("0 at collapse")
        for panel in others:  # at most one
            panel.plot(np.linspace(0, 100, len(margins)), margins, color=styles_of(["nearest-etf"])["nearest-etf"].light)
            if BEST_MARGIN.name in values:
                panel.axhline(values[BEST_MARGIN.name], **THEORY)
            panel.set_title("Cosine margins")
            panel.set_xlabel("% of samples; dotted: at the best frame")
    return figure


def _runs_figure(table: DataFrame) -> Figure:
    """Returns a figure with the curves of all experiments, one experiment below the other; failed runs are left out."""
    lacking = [name for name in NEEDED if name not in table]
    if lacking:
        raise ValueError(f"a table of runs must have the columns {', '.join(NEEDED)}; it lacks {', '.join(lacking)}. Keep them.")
    table = table[table["state"] != "failed"]
    measured = {name: quantity for name, quantity in COLUMNS.items() if name in table and table[name].notna().any()}
    if not measured:
        raise ValueError("a table of runs needs a measured epoch of a run that did not fail; got none. Train longer.")
    experiments = list(table.groupby("experiment", sort=False))
    styles = styles_of(table["head"])
    columns = min(PANELS_PER_ROW, len(measured))
    rows = -(-len(measured) // columns)
    with print_style():
        figure = Picture(figsize=(2.3 * columns, (0.5 + 1.9 * rows) * len(experiments)), layout="constrained")
        for part, (name, runs) in zip(figure.subfigures(len(experiments), 1, squeeze=False)[:, 0], experiments, strict=True):
            part.suptitle(plain(name), fontsize=9)
            heads = in_order(runs["head"])
            sizes = set(zip(runs["feature_dim"], runs["num_classes"], runs["loss_lower_bound"], strict=True))
            shown = {column: quantity for column, quantity in measured.items() if runs[column].notna().any()}
            for place, (column, quantity) in enumerate(shown.items(), 1):
                by_epoch = runs.assign(shown=quantity.factor * runs[column]).set_index("epoch")
                of_heads = {head: by_epoch[by_epoch["head"] == head].groupby("seed")["shown"] for head in heads}
                curves = curves_over_seeds({head: dict(iter(by_seed)) for head, by_seed in of_heads.items()})
                panel = part.add_subplot(rows, columns, place)
                _draw(panel, curves, styles, title=quantity.title, references=theory(quantity, sizes), log=quantity.log)
            _draw_legend(part, {head: styles[head] for head in heads})
    return figure


def all_figures(experiments: Sequence[Experiment], styles: Styles) -> dict[str, bytes]:
    """Returns the files of all figures for print, by name; experiments without a finished epoch have none."""
    files: dict[str, bytes] = {}
    with print_style():
        for experiment in experiments:
            if any(len(run.epochs.numbers) for head in experiment.heads for run in experiment.of(head)):
                files |= as_files(experiment_figure(experiment, styles), f"panels-{file_name(experiment.name)}")
    return files


def experiment_figure(experiment: Experiment, styles: Styles) -> Figure:
    """Returns a figure of an experiment with seven panels or, without test samples, with six, of which the first shows the loss."""
    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    panels = figure.subplot_mosaic("AABBCC..\nAABBCCGG\nDDEEFFGG\nDDEEFF.." if experiment.has_test else "ABC\nDEF")
    shown = {"B": (MARGIN, "Mean cosine margin"), "D": (NC1, "NC1"), "E": (NC3, "NC3"), "F": (EQUINORM, "WH-equinorm")}
    if experiment.has_test:
        shown |= {"A": (TRAIN_TOP1, "Train top-1 (%)"), "G": (TEST_TOP1, "Test top-1 (%)")}
    else:
        shown["A"] = (TRAIN_LOSS, "CE loss")
    for place, (quantity, title) in shown.items():
        known: dict[str, Any] = {"title": f"({place.lower()}) {title}", "log": quantity.log}
        _draw(panels[place], experiment.curves(quantity), styles, references=experiment.references(quantity), **known)
    known = {"title": "(c) Cosine margins at the end", "horizontal": "% of training samples"}
    _draw(panels["C"], experiment.margins("train"), styles, references=experiment.references(MARGIN), **known)
    figure.suptitle(plain(experiment.name), fontsize=9)
    _draw_legend(figure, {head: styles[head] for head in experiment.heads})
    return figure


def _draw(
    axes: Axes,
    curves: Mapping[str, DataFrame],
    styles: Styles,
    *,
    title: str,
    references: Sequence[float],
    horizontal: str = "epoch",
    log: bool = False,
) -> None:
    """Draws each curve: the median as a line with about eight markers, the range as a band."""
    for head, curve in curves.items():
        axes.fill_between(curve.index, curve["low"], curve["high"], color=styles[head].light, alpha=0.2, linewidth=0)
        axes.plot(curve.index, curve["median"], markevery=max(1, len(curve) // 8), **_line(styles[head]))
    axes.set_title(title)
    axes.set_xlabel(horizontal)
    if horizontal == "epoch":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if curves:
        for value in references:
            axes.axhline(value, **THEORY)
    else:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="gray")
    medians = np.concatenate([np.zeros(0), *(curve["median"] for curve in curves.values())])
    if log and (medians > 0).any():
        axes.set_yscale("log", nonpositive="mask")
        axes.set_ylim(bottom=max(axes.get_ylim()[0], float(medians[medians > 0].min()) / 3))
        bottom, top = axes.get_ylim()
        if top < 20 * bottom:  # plain numbers are easier to read than multiples of a power of ten
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_locator(NullLocator())


def _line(style: HeadStyle) -> dict[str, Any]:
    line = {"color": style.light, "linestyle": style.print_dash, "linewidth": 1.2}
    return line | {"marker": style.print_marker, "markersize": 3}


def _draw_legend(figure: Figure | SubFigure, styles: Styles) -> None:
    """Draws a legend below the panels, with the heads and the dotted line for theoretical values."""
    handles = [Line2D([], [], **_line(style), label=plain(label(head), SHORT_NAME)) for head, style in styles.items()]
    handles.append(Line2D([], [], **THEORY, label="theory"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), handlelength=4)


@contextmanager
def print_style() -> Iterator[None]:
    """Applies the print style to figures that are created and saved in this context, and hides warnings about missing glyphs."""
    style = files("guided_collapse.experiments.report").joinpath("assets", "print.mplstyle")
    with as_file(style) as path, matplotlib.rc_context(fname=path), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def plain(text: str, most: int = LONGEST_NAME) -> str:
    """Returns text for matplotlib: on one line, shortened to fit, with dollar signs escaped."""
    return shortened(text, most).replace("$", r"\$")


def as_files(figure: Figure, name: str) -> dict[str, bytes]:
    """Returns the figure as PDF and PNG, by file name; the PDF is reproducible."""
    # Computes the layout once and draws once per file; savefig would draw twice.
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    pdf, png = io.BytesIO(), io.BytesIO()
    FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    figure.set_dpi(200)
    FigureCanvasAgg(figure).print_png(png)  # type: ignore[no-untyped-call]
    return {f"{name}.pdf": pdf.getvalue(), f"{name}.png": png.getvalue()}


def file_name(name: str) -> str:
    """Returns the name unchanged if it is safe in file names; otherwise a shortened, unique name of safe characters.

    Letters, digits, dots, underscores and hyphens are safe.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80]
    return safe if safe == name else f"{safe}-{checksum(name.encode())[:8]}"
