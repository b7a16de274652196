"""Figures show what was measured, on the axes that the metrics declare."""

import dataclasses
import re

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from guided_collapse import measure_collapse
from guided_collapse.experiments.report import figures, load_runs, plot_collapse
from guided_collapse.experiments.report.figures import all_figures, experiment_figure, file_name, plain
from guided_collapse.experiments.report.styles import styles_of
from guided_collapse.experiments.report.summaries import COLUMNS
from tests.experiments.report.made_up import experiments, lines, write_run, write_runs

HEADS = ["cosine", "fixed-etf", "nearest-etf"]


def test_seven_panels_with_the_curves_of_all_heads(tmp_path):
    written = {(head, seed): lines(head, seed, 8) for head in HEADS for seed in range(2)}
    write_runs(tmp_path, written)
    figure = experiment_figure(experiments(tmp_path)[0], styles_of(HEADS))
    panels = sorted(figure.axes, key=lambda axes: axes.get_title())
    names = ["Train top-1 (%)", "Mean cosine margin", "Cosine margins at the end", "NC1", "NC3", "WH-equinorm", "Test top-1 (%)"]
    assert [axes.get_title() for axes in panels] == [f"({letter}) {name}" for letter, name in zip("abcdefg", names, strict=True)]
    for axes, split in ((panels[0], "train"), (panels[6], "test")):
        for place, head in enumerate(HEADS):
            values = 100 * np.array([[line[split]["top1"] for line in written[head, seed]] for seed in range(2)])
            np.testing.assert_allclose(axes.lines[place].get_ydata(), np.median(values, axis=0))
            edges = axes.collections[place].get_paths()[0].vertices[:, 1]
            assert (edges.min(), edges.max()) == (pytest.approx(values.min()), pytest.approx(values.max()))
    assert panels[1].lines[-1].get_ydata() == pytest.approx([10 / 9, 10 / 9])
    assert [axes.get_yscale() for axes in panels] == ["linear"] * 3 + ["log"] * 3 + ["linear"]
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Cosine", "Fixed ETF", "Nearest ETF", "theory"]


def test_six_panels_without_test_samples_begin_with_the_loss_and_its_bound(tmp_path):
    write_run(tmp_path, "ufm-10", "nearest-etf", num_test=0, margins=None, epochs=3)
    figure = experiment_figure(experiments(tmp_path)[0], styles_of(HEADS))
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title() == "(a) CE loss"
    assert figure.axes[0].lines[-1].get_ydata() == [0.0342, 0.0342]
    assert [text.get_text() for text in figure.axes[2].texts] == ["not measured"]


@pytest.mark.parametrize(
    ("values", "scale", "ticks"),
    [([0.0, 0.0], "linear", []), ([0.4, 0.6], "log", ["0.3", "0.6"]), ([0.4, 0.0, 40.0], "log", ["10^{-1}", "10^{0}", "10^{1}"])],
)
def test_a_logarithmic_axis_only_where_it_can_show_something_and_plain_ticks_on_a_narrow_one(values, scale, ticks, tmp_path):
    found = [{"epoch": epoch, "train": {"nc1": value}} for epoch, value in enumerate(values, 1)]
    write_run(tmp_path, lines=found)
    figure = experiment_figure(experiments(tmp_path)[0], styles_of(HEADS))
    figure.draw_without_rendering()
    (axes,) = (panel for panel in figure.axes if panel.get_title() == "(d) NC1")
    texts = [label.get_text() for label in axes.get_yticklabels()]
    assert axes.get_yscale() == scale
    assert all(any(tick in text for text in texts) for tick in ticks)


def test_files_for_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "as_files", lambda figure, name: {f"{name}.pdf": b""})
    write_run(tmp_path, "toy", "cosine", epochs=2)
    write_run(tmp_path, "ufm-10", "cosine", epochs=2, num_test=0)
    write_run(tmp_path, "dead", "cosine", epochs=2, state="failed")
    found = all_figures(experiments(tmp_path), styles_of(HEADS))
    assert set(found) == {"panels-toy.pdf", "panels-ufm-10.pdf"}


def test_names_that_hold_anything_become_harmless_and_stay_apart():
    assert [file_name(name) for name in ("cifar10-resnet18", "my.run_2")] == ["cifar10-resnet18", "my.run_2"]
    found = {file_name(name) for name in ("<script>", "../../etc", "", "a/b", "a b", "a-b", ".hidden", "x" * 500, "x" * 501)}
    assert len(found) == 9
    assert all(re.fullmatch(r"[\w.-]{,89}", name) and not name.startswith(".") for name in found)
    assert plain("a\n$b$") == r"a \$b\$"


def test_files_are_whole_and_the_same_each_time_and_leave_the_style_alone():
    before = matplotlib.rcParams["font.size"]

    def drawn():
        with figures.print_style():
            figure = Figure(figsize=(2, 1), layout="constrained")
            figure.add_subplot().set_title(plain(r"$\frac{ 漢字 \alpha$ <b>"))
            return figures.as_files(figure, "name")

    files = drawn()
    assert matplotlib.rcParams["font.size"] == before
    assert files["name.pdf"].startswith(b"%PDF")
    assert files["name.png"].startswith(b"\x89PNG")
    assert files["name.pdf"] == drawn()["name.pdf"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for head in ("cosine", "fixed-etf"):
        for seed in range(3):
            write_run(folder, "toy", head, seed)
    write_run(folder, "toy", "nearest-etf", 0, epochs=2, state="failed")
    write_run(folder, "other $5", "fixed-etf", 0)
    return load_runs(folder)


def test_runs_have_a_panel_for_each_quantity_and_a_part_for_each_experiment(runs):
    figure = plot_collapse(runs)
    shown = [quantity for name, quantity in COLUMNS.items() if name in runs]
    assert [panel.get_title() for panel in figure.axes] == [quantity.title for quantity in shown] * 2
    assert [panel.get_yscale() for panel in figure.subfigs[1].axes] == ["log" if quantity.log else "linear" for quantity in shown]
    assert [text.get_text() for text in figure.subfigs[1].legends[0].get_texts()] == ["Cosine", "Fixed ETF", "theory"]


def test_curves_are_medians_over_seeds_with_theory_as_a_line_and_no_failed_run(runs):
    chosen = ["train_nc1", "train_mean_cosine_margin"]
    toy = runs[runs["experiment"] == "toy"].drop(columns=[name for name in COLUMNS if name in runs and name not in chosen])
    margin, nc1 = plot_collapse(toy).axes
    cosine, fixed = nc1.get_lines()
    expected = np.median([[line["train"]["nc1"] for line in lines("cosine", seed)] for seed in range(3)], axis=0)
    np.testing.assert_allclose(cosine.get_ydata(), expected)
    np.testing.assert_array_equal(fixed.get_xdata(), range(1, 21))
    assert margin.get_lines()[-1].get_ydata()[0] == pytest.approx(10 / 9)


@pytest.fixture
def result():
    labels = torch.arange(60) % 3
    features = torch.eye(3)[labels] + 0.1 * torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return measure_collapse(features, labels, torch.eye(3))


def test_a_result_has_bars_and_margins(result):
    figure = plot_collapse(result)
    bars, margins = figure.axes
    assert bars.get_yticklabels()[0].get_text() == f"NC1, tr(S_W pinv(S_B))/C: {result.nc1:.3g}"
    assert bars.patches[0].get_width() == pytest.approx(result.nc1)
    assert bars.get_xscale() == "log"
    curve, reference = margins.get_lines()
    np.testing.assert_allclose(curve.get_ydata(), result.cosine_margins)
    assert reference.get_ydata()[0] == 1.5
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_result_shows_what_it_has(result):
    assert len(plot_collapse(dataclasses.replace(result, cosine_margins=None, nc1=0.0)).axes) == 1


def test_what_cannot_be_plotted_is_refused(runs):
    with pytest.raises(TypeError, match=r"CollapseResult or the DataFrame from load_runs\(folder\); got str"):
        plot_collapse("runs")
    with pytest.raises(ValueError, match="it lacks head, num_classes"):
        plot_collapse(runs.drop(columns=["head", "num_classes"]))
    with pytest.raises(ValueError, match="a run that did not fail; got none"):
        plot_collapse(runs[runs["state"] == "failed"])
