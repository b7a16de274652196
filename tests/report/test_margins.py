import numpy as np

from guided_collapse.records.run import read_run
from guided_collapse.report.margins import MOST_POINTS, margins_over_seeds
from tests.report.made_up import write_run


def runs_with(tmp_path, *arrays):
    return [read_run(write_run(tmp_path, seed=seed, margins=margins)) for seed, margins in enumerate(arrays)]


def test_few_samples_are_shown_one_by_one(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32)
    curve = margins_over_seeds(runs_with(tmp_path, *({"train": np.sort(row)} for row in values)), "train")
    ranked = np.sort(values.astype(np.float64), axis=1)
    np.testing.assert_allclose(curve.x, 100 * np.arange(40) / 39)
    np.testing.assert_allclose(curve.median, np.median(ranked, axis=0), rtol=1e-12)
    np.testing.assert_allclose(curve.low, ranked.min(axis=0), rtol=1e-12)
    np.testing.assert_allclose(curve.high, ranked.max(axis=0), rtol=1e-12)


def test_many_samples_of_different_number_are_shown_by_quantile(tmp_path):
    first, second = (np.random.default_rng(num).normal(size=num) for num in (2000, 3001))
    curve = margins_over_seeds(runs_with(tmp_path, {"train": first}, {"train": second}), "train")
    assert len(curve.x) == MOST_POINTS
    expected = [np.quantile(values, curve.x / 100) for values in (first, second)]
    np.testing.assert_allclose(curve.median, np.mean(expected, axis=0), atol=1e-9)


def test_runs_without_margins_do_not_count(tmp_path):
    runs = runs_with(tmp_path, {"train": np.array([0.5])}, None, {"train": np.array([0.25, 1.0])})
    curve = margins_over_seeds(runs, "train")
    np.testing.assert_array_equal(curve.low, [0.25, 0.5])
    np.testing.assert_array_equal(curve.count, [2, 2])
    assert margins_over_seeds(runs, "test") is None
