"""Medians and ranges against plain Python on the same lines."""

import statistics

import numpy as np
import pytest

from guided_collapse.experiments.records.declared.quantities import NC1, QUANTITIES, TEST_TOP1, TRAIN_LOSS
from guided_collapse.experiments.records.run import read_run
from guided_collapse.experiments.report.summaries import MOST_MARGINS, at_epoch, margins_over_seeds, over_seeds, spread
from tests.experiments.report.made_up import lines, write_run

USUAL = [quantity for quantity in QUANTITIES if not quantity.occasional]


def by_hand(all_lines, quantity):
    """Median, low, high and count by epoch."""
    found = {}
    for run in all_lines:
        for line in run:
            value = line.get(quantity.split, {}).get(quantity.name)
            if value is not None:
                found.setdefault(line["epoch"], []).append(100 * value if quantity.percent else value)
    return {epoch: (statistics.median(values), min(values), max(values), len(values)) for epoch, values in sorted(found.items())}


def agree(curve, expected):
    np.testing.assert_array_equal(curve.x, list(expected))
    for place, name in enumerate(("median", "low", "high", "count")):
        np.testing.assert_allclose(getattr(curve, name), [values[place] for values in expected.values()], rtol=1e-12)


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("quantity", USUAL, ids=lambda quantity: f"{quantity.split}-{quantity.name}")
def test_median_and_range_over_seeds(seeds, quantity, tmp_path):
    all_lines = [lines("cosine", seed, 6, every=2) for seed in range(seeds)]
    runs = [read_run(write_run(tmp_path, seed=seed, lines=all_lines[seed])) for seed in range(seeds)]
    agree(over_seeds(runs, quantity), by_hand(all_lines, quantity))


def test_runs_of_different_length_count_as_far_as_they_go(tmp_path):
    all_lines = [lines("cosine", 0, 6), lines("cosine", 1, 3), lines("cosine", 2, 9, every=3)]
    runs = [read_run(write_run(tmp_path, seed=seed, lines=all_lines[seed])) for seed in range(3)]
    curve = over_seeds(runs, TRAIN_LOSS)
    agree(curve, by_hand(all_lines, TRAIN_LOSS))
    np.testing.assert_array_equal(curve.count, [2, 2, 3, 1, 1, 2, 1])


def test_a_metric_that_is_missing(tmp_path):
    all_lines = [lines("cosine", seed, 4) for seed in range(2)]
    for line in all_lines[0]:
        del line["train"]["nc1"]
    all_lines[1][1]["train"]["nc1"] = None
    runs = [read_run(write_run(tmp_path, seed=seed, lines=all_lines[seed])) for seed in range(2)]
    agree(over_seeds(runs, NC1), by_hand(all_lines, NC1))
    assert over_seeds(runs[:1], NC1) is None
    assert over_seeds([], NC1) is None
    assert at_epoch(runs[:1], NC1, None) is None
    assert at_epoch(runs, NC1, 2).epochs == (1,)


def test_at_an_epoch_the_last_measurement_before_it_counts(tmp_path):
    all_lines = [lines("cosine", 0, 20), lines("cosine", 1, 9), lines("cosine", 2, 20, every=4)]
    runs = [read_run(write_run(tmp_path, seed=seed, lines=all_lines[seed])) for seed in range(3)]
    found = at_epoch(runs, TEST_TOP1, 10)
    assert found.epochs == (10, 9, 8)
    values = [100 * run[epoch - 1]["test"]["top1"] for run, epoch in zip(all_lines, (10, 9, 8), strict=True)]
    assert found.spread.median == pytest.approx(statistics.median(values), rel=1e-12)
    assert (found.spread.low, found.spread.high, found.spread.count) == (min(values), max(values), 3)
    assert at_epoch(runs, TEST_TOP1, None).epochs == (20, 9, 20)
    assert at_epoch(runs, TEST_TOP1, 3).epochs == (3, 3)
    assert at_epoch(runs[2:], TEST_TOP1, 3) is None


def test_what_never_happened_is_infinite():
    assert spread([3.0, np.inf]).median == np.inf
    assert spread([3.0, 4.0, np.inf]).median == 4.0
    assert spread([np.inf, np.inf]).low == np.inf


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
    assert len(curve.x) == MOST_MARGINS
    expected = [np.quantile(values, curve.x / 100) for values in (first, second)]
    np.testing.assert_allclose(curve.median, np.mean(expected, axis=0), atol=1e-9)


def test_runs_without_margins_do_not_count(tmp_path):
    runs = runs_with(tmp_path, {"train": np.array([0.5])}, None, {"train": np.array([0.25, 1.0])})
    curve = margins_over_seeds(runs, "train")
    np.testing.assert_array_equal(curve.low, [0.25, 0.5])
    np.testing.assert_array_equal(curve.count, [2, 2])
    assert margins_over_seeds(runs, "test") is None
