import json

import numpy as np

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.page.animation import animations_of
from guided_collapse.experiments.report.page.data import page_data, rounded, safe_json
from guided_collapse.experiments.report.page.panels import panels_of
from guided_collapse.experiments.report.styles import styles_of
from tests.experiments.report.made_up import lines, write_run


def data_of(tmp_path):
    records = read_records([tmp_path])
    experiments = by_experiment(records.runs)
    styles = styles_of(run.head for run in records.runs)
    return json.loads(page_data([panels_of(e) for e in experiments], [animations_of(e) for e in experiments], styles))


def test_curves_equal_an_independent_computation(tmp_path):
    written = [lines("fixed-etf", seed, 6, every=2) for seed in range(5)]
    for seed in range(5):
        write_run(tmp_path, head="fixed-etf", seed=seed, lines=written[seed])
    data = data_of(tmp_path)
    panel = next(panel for panel in data["experiments"][0]["panels"] if panel["title"].startswith("Top-1 accuracy, test"))
    curve = panel["curves"][0]
    values = 100 * np.array([[line["test"]["top1"] for line in run if "test" in line] for run in written])
    assert data["x"][curve["x"]] == [2, 4, 6]
    np.testing.assert_allclose(curve["median"], np.median(values, axis=0), rtol=1e-5)
    np.testing.assert_allclose(curve["low"], values.min(axis=0), rtol=1e-5)
    np.testing.assert_allclose(curve["high"], values.max(axis=0), rtol=1e-5)
    assert curve["seeds"] == 5
    assert data["heads"][curve["head"]]["name"] == "fixed-etf"


def test_one_seed_has_no_range_and_counts_that_differ_are_listed(tmp_path):
    write_run(tmp_path, head="fixed-etf", epochs=4)
    write_run(tmp_path, head="nearest-etf", epochs=4)
    write_run(tmp_path, head="nearest-etf", seed=1, epochs=2)
    fixed, implicit = data_of(tmp_path)["experiments"][0]["panels"][0]["curves"]
    assert "low" not in fixed
    assert fixed["x"] == implicit["x"]
    assert fixed["seeds"] == 1
    assert implicit["seeds"] == [2, 2, 1, 1]


def test_animations_name_their_head(tmp_path):
    write_run(tmp_path, head="cosine")
    write_run(tmp_path, head="nearest-etf", trace=True)
    (animation,) = data_of(tmp_path)["experiments"][0]["animations"]
    assert animation["head"] == 1
    assert animation["epochs"] == [1, 5, 10, 20]


def test_json_cannot_leave_its_script():
    text = safe_json({"</script><!--": "&lt; \u2028 é"})
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == {"</script><!--": "&lt; \u2028 é"}


def test_numbers_keep_six_digits_and_nan_becomes_null():
    assert rounded(np.array([1.23456789, 1.5e-12, np.nan, np.inf, 3.0])) == [1.23457, 1.5e-12, None, None, 3.0]
