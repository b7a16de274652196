import numpy as np
import pytest

from guided_collapse.experiments.records.reading import read_cost, read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.figures import for_print as module
from guided_collapse.experiments.report.figures.for_print import (
    all_figures,
    cost_figure,
    experiment_figure,
    file_names,
    trajectory_figure,
)
from guided_collapse.experiments.report.styles import styles_of
from tests.experiments.report.made_up import lines, write_cost, write_run

HEADS = ["cosine", "fixed-etf", "nearest-etf", "paper-route"]


def experiments(tmp_path):
    return by_experiment(read_records([tmp_path]).runs)


def test_seven_panels_with_the_curves_of_all_heads(tmp_path):
    written = {(head, seed): lines(head, seed, 8) for head in HEADS[:3] for seed in range(2)}
    for (head, seed), found in written.items():
        write_run(tmp_path, head=head, seed=seed, lines=found)
    figure = experiment_figure(experiments(tmp_path)[0], styles_of(HEADS))
    panels = sorted(figure.axes, key=lambda axes: axes.get_title())
    assert [axes.get_title() for axes in panels] == [
        "(a) Train top-1 (%)",
        "(b) Mean cosine margin",
        "(c) Cosine margins at the end",
        "(d) NC1",
        "(e) NC3",
        "(f) WH-equinorm",
        "(g) Test top-1 (%)",
    ]
    for axes, split in ((panels[0], "train"), (panels[6], "test")):
        for place, head in enumerate(HEADS[:3]):
            medians = [100 * np.median([written[head, seed][epoch][split]["top1"] for seed in range(2)]) for epoch in range(8)]
            np.testing.assert_allclose(axes.lines[place].get_ydata(), medians)
    assert panels[1].lines[-1].get_ydata() == pytest.approx([10 / 9, 10 / 9])
    assert [axes.get_yscale() for axes in panels] == ["linear"] * 3 + ["log"] * 3 + ["linear"]
    figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in panels[0].get_xticks())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Standard", "Fixed ETF", "Implicit ETF", "theory"]


def test_six_panels_without_test_samples_begin_with_the_loss_and_its_bound(tmp_path):
    write_run(tmp_path, "ufm-10", "nearest-etf", num_test=0, margins=None, epochs=3)
    figure = experiment_figure(experiments(tmp_path)[0], styles_of(HEADS))
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title() == "(a) CE loss"
    assert figure.axes[0].lines[-1].get_ydata() == [0.0342, 0.0342]
    assert [text.get_text() for text in figure.axes[2].texts] == ["not measured"]


def test_the_trajectory_has_a_panel_for_each_number_of_classes(tmp_path):
    for classes in (10, 100, 200, 1000, 2000):
        write_run(tmp_path, f"ufm-{classes}", "cosine", num_test=0, num_classes=classes, lines=lines("cosine", 0, 900, every=50))
    figure = trajectory_figure(experiments(tmp_path), styles_of(HEADS))
    assert [axes.get_title() for axes in figure.axes] == [f"ufm-{c}, {c} classes" for c in (10, 100, 200, 1000, 2000)]
    assert {axes.get_xscale() for axes in figure.axes} == {"log"}


def test_the_cost_figure_has_the_papers_notation(tmp_path):
    figure = cost_figure(read_cost(write_cost(tmp_path)), styles_of(HEADS))
    left, right = figure.axes
    assert left.get_title() == "(a) Forward pass (ms), without P"
    assert figure.get_supxlabel().endswith("P = the paper's route")
    assert [label.get_text() for label in left.get_xticklabels()] == ["S/F", "F/F", "I/F"]
    assert [label.get_text() for label in right.get_xticklabels()] == ["S/F", "S/B", "F/F", "F/B", "I/F", "I/B", "P/F"]
    assert [bar.get_height() for bar in right.patches] == [1.25, 2.5, 1.5, 2.0, 4.0, 6.5, 12345.6]
    assert right.get_yscale() == "log"


def test_files_for_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "as_files", lambda figure, name: {f"{name}.pdf": b"", f"{name}.png": b""})
    write_run(tmp_path, "$toy$", "cosine", epochs=2)
    write_run(tmp_path, "ufm-10", "cosine", epochs=2, num_test=0)
    write_run(tmp_path, "dead", "cosine", epochs=2, state="failed")
    costs = [read_cost(write_cost(tmp_path / "cost")), read_cost(write_cost(tmp_path / "none", rows=[]))]
    files = all_figures(experiments(tmp_path), costs, styles_of(HEADS))
    assert {name for name in files if name.endswith("pdf")} == {
        "panels-toy.pdf",
        "panels-ufm-10.pdf",
        "ufm-trajectory.pdf",
        "cost-toy.pdf",
    }


def test_of_more_experiments_than_anybody_prints_there_are_no_figures(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_run(tmp_path, name, epochs=2)
    monkeypatch.setattr(module, "MOST_EXPERIMENTS", 1)
    with pytest.warns(UserWarning, match="of at most 1 experiments; got 2"):
        assert all_figures(experiments(tmp_path), [], styles_of(HEADS)) == {}


def test_ordinary_names_stay():
    assert file_names(["cifar10-resnet18", "my.run_2"]) == ["cifar10-resnet18", "my.run_2"]


def test_names_that_hold_anything_become_harmless_and_stay_apart():
    names = ["<script>alert(1)</script>", "../../etc", "", "a/b", "a b", "A-B", ".hidden", "x" * 500, "x" * 501]
    found = file_names(names)
    assert found[:7] == ["script-alert-1-script", "etc", "experiment", "a-b", "a-b-2", "A-B-3", "hidden"]
    assert len({name.lower() for name in found}) == len(names)
    assert all(len(name) <= 84 for name in found)
