import numpy as np
import pytest

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.page import panels as module
from guided_collapse.experiments.report.page.panels import panels_of, thinned
from tests.experiments.report.made_up import lines, write_run


def panels(tmp_path):
    return panels_of(by_experiment(read_records([tmp_path]).runs)[0])


def test_a_panel_for_everything_that_was_measured(tmp_path):
    write_run(tmp_path, head="cosine")
    write_run(tmp_path, head="fixed-etf", state="failed")
    titles = [panel.title for panel in panels(tmp_path)]
    assert len(titles) == 14
    assert titles[0] == "Loss, train"
    assert titles[-2:] == ["Cosine margins at the end, train", "Cosine margins at the end, test"]
    assert all(list(panel.curves) == ["cosine"] for panel in panels(tmp_path))


def test_without_test_samples_there_are_no_panels_of_them(tmp_path):
    write_run(tmp_path, num_test=0)
    titles = [panel.title for panel in panels(tmp_path)]
    assert len(titles) == 10
    assert not any("test" in title for title in titles)


def test_references(tmp_path):
    write_run(tmp_path, loss_lower_bound=0.25, num_classes=5)
    found = {panel.title: panel.references for panel in panels(tmp_path)}
    assert found["Loss, train"] == (("lower bound", 0.25),)
    assert found["Mean cosine margin, train"] == found["Cosine margins at the end, train"] == (("best frame", 1.25),)
    assert found["Loss, test"] == ()


def test_in_words_a_curve_has_its_ends(tmp_path):
    written = [lines("cosine", seed, 4) for seed in range(2)]
    for seed in range(2):
        write_run(tmp_path, seed=seed, lines=written[seed])
    losses = [[run[place]["train"]["loss"] for run in written] for place in (0, -1)]
    first, last = (f"{np.mean(pair):.4g} ({min(pair):.4g} to {max(pair):.4g})" for pair in losses)
    assert panels(tmp_path)[0].in_words() == {"cosine": f"{first} at epoch 1; {last} at epoch 4; 2 seeds"}
    assert "at 100 % of train samples; 2 seeds" in panels(tmp_path)[-2].in_words()["cosine"]


def test_a_page_that_would_be_too_large_is_thinned(tmp_path, monkeypatch):
    write_run(tmp_path, epochs=200)
    found = panels(tmp_path)
    same, most = thinned([found])
    assert most is None
    assert same == [found]
    monkeypatch.setattr(module, "MOST_POINTS", 14 * 60)
    (few,), most = thinned([found])
    assert most == 60
    curve, whole = few[0].curves["cosine"], found[0].curves["cosine"]
    assert len(curve.x) == 60
    assert (curve.x[0], curve.x[-1]) == (1, 200)
    np.testing.assert_array_equal(curve.median, whole.median[curve.x.astype(int) - 1])


@pytest.mark.parametrize("missing", ["nc1", "equinorm"])
def test_a_metric_that_is_missing_has_no_panel(missing, tmp_path):
    written = lines("cosine", 0, 3)
    for line in written:
        line["train"][missing] = None
    write_run(tmp_path, lines=written)
    assert len(panels(tmp_path)) == 13
