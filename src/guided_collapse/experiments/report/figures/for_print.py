"""The paper's figures for print: panels of one experiment, unconstrained features over the number of classes, costs."""

import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from guided_collapse.experiments.records.declared.heads import HEADS
from guided_collapse.experiments.records.declared.quantities import (
    EQUINORM,
    MARGIN,
    NC1,
    NC3,
    TEST_TOP1,
    TRAIN_LOSS,
    TRAIN_TOP1,
    Quantity,
)
from guided_collapse.experiments.records.schema import CostRecord
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.figures.drawing import (
    SHORT_NAME,
    as_files,
    draw_curve,
    draw_legend,
    draw_quantity,
    draw_references,
    finish,
    plain,
    print_style,
)
from guided_collapse.experiments.report.styles import HeadStyle, letter
from guided_collapse.experiments.report.summaries import margins_over_seeds, over_seeds
from guided_collapse.experiments.report.tables.cost import notation, timed_passes

PANELS_IN_A_ROW = 4
WIDTH = 7.0
MOST_EXPERIMENTS = 50  # a figure takes a second or two, and of hundreds nobody prints each
LONGEST_FILE_NAME = 80
KEY_LETTERS = 120  # that the key of a figure has room for in a line


def all_figures(
    experiments: Sequence[Experiment], costs: Sequence[CostRecord], styles: Mapping[str, HeadStyle]
) -> dict[str, bytes]:
    """The files of all figures for which there is something to draw, by name.

    Warns:
        UserWarning: for more experiments than anybody prints, of which none are drawn.
    """
    if max(len(experiments), len(costs)) > MOST_EXPERIMENTS:
        warnings.warn(
            f"figures for print are drawn of at most {MOST_EXPERIMENTS} experiments; got {max(len(experiments), len(costs))}. "
            "The page has all curves; make a report of fewer folders for figures.",
            stacklevel=3,
        )
        return {}
    files: dict[str, bytes] = {}
    names = file_names([experiment.name for experiment in experiments])
    cost_names = file_names([f"cost-{cost.experiment}" for cost in costs])
    with print_style():
        for experiment, name in zip(experiments, names, strict=True):
            if any(len(run.epochs.numbers) for head in experiment.heads for run in experiment.of(head)):
                files |= as_files(experiment_figure(experiment, styles), f"panels-{name}")
        unconstrained = [experiment for experiment in experiments if experiment.unconstrained]
        if unconstrained:
            files |= as_files(trajectory_figure(unconstrained, styles), "ufm-trajectory")
        for cost, name in zip(costs, cost_names, strict=True):
            if cost.rows:
                files |= as_files(cost_figure(cost, styles), name)
    return files


def experiment_figure(experiment: Experiment, styles: Mapping[str, HeadStyle]) -> Figure:
    """Seven panels, or six for an experiment without test samples, which then begins with the loss."""
    rows = "ABC\nDEF" if not experiment.has_test else "AABBCC..\nAABBCCGG\nDDEEFFGG\nDDEEFF.."
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    panels = figure.subplot_mosaic(rows)
    first = TRAIN_TOP1 if experiment.has_test else TRAIN_LOSS
    first_title = "Train top-1 (%)" if experiment.has_test else "CE loss"
    _quantity_panel(panels["A"], experiment, styles, first, f"(a) {first_title}")
    _quantity_panel(panels["B"], experiment, styles, MARGIN, "(b) Mean cosine margin")
    _margin_panel(panels["C"], experiment, styles)
    _quantity_panel(panels["D"], experiment, styles, NC1, "(d) NC1")
    _quantity_panel(panels["E"], experiment, styles, NC3, "(e) NC3")
    _quantity_panel(panels["F"], experiment, styles, EQUINORM, "(f) WH-equinorm")
    if experiment.has_test:
        _quantity_panel(panels["G"], experiment, styles, TEST_TOP1, "(g) Test top-1 (%)")
    figure.suptitle(plain(experiment.name), fontsize=9)
    draw_legend(figure, {head: styles[head] for head in experiment.heads}, reference=True)
    return figure


def trajectory_figure(experiments: Sequence[Experiment], styles: Mapping[str, HeadStyle]) -> Figure:
    """Train accuracy of unconstrained features, a panel for each number of classes."""
    rows = -(-len(experiments) // PANELS_IN_A_ROW)
    figure = Figure(figsize=(WIDTH, 2.2 * rows), layout="constrained")
    for place, experiment in enumerate(experiments, 1):
        axes = figure.add_subplot(rows, min(len(experiments), PANELS_IN_A_ROW), place)
        _quantity_panel(
            axes, experiment, styles, TRAIN_TOP1, f"{plain(experiment.name, SHORT_NAME)}, {experiment.runs[0].num_classes} classes"
        )
        # Heads differ in the first steps, and runs are long.
        axes.set_xscale("log")
        axes.set_ylabel("Train top-1 (%)" if place % PANELS_IN_A_ROW == 1 else "")
    shown = {head for experiment in experiments for head in experiment.heads}
    draw_legend(figure, {head: style for head, style in styles.items() if head in shown})
    return figure


def cost_figure(cost: CostRecord, styles: Mapping[str, HeadStyle]) -> Figure:
    """Forward times, and forward and backward times on a logarithmic axis, in the paper's notation."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    # On a linear axis the paper's own route would hide all others.
    forward = [row for row in cost.rows if row.forward_ms is not None and row.head in HEADS]
    for place, row in enumerate(forward):
        left.bar(place, row.forward_ms or 0.0, color=styles[row.head].light)
    left.set_xticks(range(len(forward)), [plain(f"{letter(row.head)}/F", SHORT_NAME) for row in forward])
    hidden = [letter(row.head) for row in cost.rows if row.forward_ms is not None and row.head not in HEADS]
    left.set_title(plain(f"(a) Forward pass (ms){', without ' if hidden else ''}{', '.join(hidden)}"))
    shown = timed_passes(cost)
    for place, bar in enumerate(shown):
        right.bar(place, bar.milliseconds, color=styles[bar.head].light, hatch="//" if bar.backward else "", edgecolor="white")
    right.set_xticks(range(len(shown)), [plain(bar.notation, SHORT_NAME) for bar in shown])
    if shown:
        right.set_yscale("log")
        right.set_ylim(bottom=min(bar.milliseconds for bar in shown) / 2)
    left.grid(visible=False, axis="x")
    right.grid(visible=False, axis="x")
    right.set_title("(b) Forward and backward pass (ms, log)")
    figure.suptitle(plain(f"Cost of a step, {cost.experiment}"), fontsize=9)
    key = textwrap.wrap("; ".join(["/F = forward, /B = backward", *notation(cost)]), KEY_LETTERS)
    figure.supxlabel("\n".join(map(plain, key)), fontsize=7)
    return figure


def _quantity_panel(axes: Axes, experiment: Experiment, styles: Mapping[str, HeadStyle], quantity: Quantity, title: str) -> None:
    curves = {head: over_seeds(experiment.of(head), quantity) for head in experiment.heads}
    draw_quantity(axes, curves, styles, quantity, title=title, references=experiment.references(quantity))


def _margin_panel(axes: Axes, experiment: Experiment, styles: Mapping[str, HeadStyle]) -> None:
    empty = True
    for head in experiment.heads:
        curve = margins_over_seeds(experiment.of(head), "train")
        if curve is not None:
            empty = False
            draw_curve(axes, curve, styles[head])
    finish(axes, "(c) Cosine margins at the end", "% of training samples", empty=empty)
    if not empty:
        draw_references(axes, experiment.references(MARGIN))


def file_names(names: Sequence[str]) -> list[str]:
    """A name of letters, digits, dots and hyphens for each name, no two alike, even where capitals do not count."""
    taken: set[str] = set()
    result = []
    for name in names:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:LONGEST_FILE_NAME] or "experiment"
        candidate, number = base, 2
        while candidate.lower() in taken:
            candidate, number = f"{base}-{number}", number + 1
        taken.add(candidate.lower())
        result.append(candidate)
    return result
