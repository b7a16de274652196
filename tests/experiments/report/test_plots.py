"""Figures show what was measured, on the axes that metrics are declared with."""

import dataclasses

import numpy as np
import pytest
import torch

from guided_collapse import measure_collapse
from guided_collapse.experiments.report import load_runs, plot_collapse
from guided_collapse.experiments.report.run_table import quantities_of
from tests.experiments.report.made_up import lines, write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for head in ("cosine", "fixed-etf"):
        for seed in range(3):
            write_run(folder, "toy", head, seed)
    write_run(folder, "toy", "nearest-etf", 0, epochs=2, state="failed")
    write_run(folder, "other $5", "fixed-etf", 0)
    return load_runs(folder)


@pytest.fixture
def result():
    labels = torch.arange(60) % 3
    generator = torch.Generator().manual_seed(0)
    features = torch.eye(3)[labels] + 0.1 * torch.randn(60, 3, generator=generator)
    return measure_collapse(features, labels, torch.eye(3))


def test_a_panel_for_each_quantity_and_a_part_for_each_experiment(runs):
    figure = plot_collapse(runs)
    quantities = list(quantities_of(runs).values())
    assert [panel.get_title() for panel in figure.axes] == [quantity.title for quantity in quantities] * 2
    for panel, quantity in zip(figure.subfigs[1].axes, quantities, strict=True):
        assert panel.get_yscale() == ("log" if quantity.log else "linear")
    assert len(figure.subfigs) == 2
    labels = [text.get_text() for text in figure.subfigs[1].legends[0].get_texts()]
    assert labels == ["Standard", "Fixed ETF", "theory"]


def test_curves_are_medians_over_seeds_and_failed_runs_are_in_none(runs):
    toy = runs[runs["experiment"] == "toy"]
    figure = plot_collapse(toy)
    (panel,) = (panel for panel in figure.axes if panel.get_title().startswith("NC1"))
    standard, fixed = panel.get_lines()
    expected = np.median([[line["train"]["nc1"] for line in lines("cosine", seed)] for seed in range(3)], axis=0)
    np.testing.assert_allclose(standard.get_ydata(), expected)
    np.testing.assert_array_equal(fixed.get_xdata(), range(1, 21))


def test_theory_is_a_line(runs):
    figure = plot_collapse(runs[runs["experiment"] == "toy"])
    panels = {panel.get_title(): panel for panel in figure.axes}
    for title, value in (("Mean cosine margin, train", 10 / 9), ("Loss, train", 0.0342)):
        assert panels[title].get_lines()[-1].get_ydata()[0] == pytest.approx(value)


def test_fewer_columns_are_fewer_panels(runs):
    chosen = runs.drop(columns=[name for name in quantities_of(runs) if name not in ("train_nc1", "test_top1")])
    assert len(plot_collapse(chosen).axes) == 4


def test_a_result_has_bars_and_margins(result):
    bars, margins = plot_collapse(result).axes
    shown = [label.get_text() for label in bars.get_yticklabels()]
    assert {"NC1, tr(S_W pinv(S_B))/C", "trace ratio, tr S_W / tr S_B"} <= set(shown)
    assert "accuracy" not in shown
    assert bars.get_xscale() == "log"
    drawn = {label: text.get_text() for label, text in zip(shown, bars.texts, strict=True)}
    assert bars.patches[0].get_x() + bars.patches[0].get_width() == pytest.approx(result.nc1)
    assert drawn["NC1, tr(S_W pinv(S_B))/C"] == f"{result.nc1:.3g}"
    curve, reference = margins.get_lines()
    np.testing.assert_allclose(curve.get_ydata(), result.cosine_margins)
    assert reference.get_ydata()[0] == 1.5


def test_a_result_of_features_alone_has_bars_only(result):
    assert len(plot_collapse(dataclasses.replace(result, cosine_margins=None, nc1=0.0)).axes) == 1


def test_a_notebook_shows_it(result):
    assert plot_collapse(result)._repr_png_().startswith(b"\x89PNG")


def test_refusals(runs):
    with pytest.raises(ValueError, match=r"CollapseResult or the table of load_runs\(folder\); got str"):
        plot_collapse("runs")
    with pytest.raises(ValueError, match="it lacks head, num_classes"):
        plot_collapse(runs.drop(columns=["head", "num_classes"]))
    with pytest.raises(ValueError, match="a run that did not fail; it has none"):
        plot_collapse(runs[runs["state"] == "failed"])


def test_where_the_best_margin_is_not_known_there_is_no_line_for_it():
    labels = torch.arange(60) % 9
    result = measure_collapse(torch.randn(60, 3), labels, torch.randn(9, 3))
    assert result.ideal_cosine_margin is None
    _, margins = plot_collapse(result).axes
    assert len(margins.lines) == 1
