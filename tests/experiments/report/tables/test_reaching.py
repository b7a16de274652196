import math

import numpy as np
import pytest

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.records.run import read_run
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.tables.reaching import LEVELS, reaching_table, when_reached
from tests.experiments.report.made_up import lines, write_run


def run_with(tmp_path, seed, accuracies, seconds=None):
    written = [
        {"epoch": epoch, "seconds": 2.0 if seconds is None else seconds[epoch - 1], "running": {"top1": 1.0}}
        for epoch in range(1, len(accuracies) + 1)
    ]
    for line, accuracy in zip(written, accuracies, strict=True):
        if accuracy is not None:
            line["train"] = {"top1": accuracy}
    return read_run(write_run(tmp_path, seed=seed, lines=written))


def test_the_first_measured_epoch_at_a_level_counts(tmp_path):
    run = run_with(tmp_path, 0, [0.2, None, 0.8, 0.5, 0.95, 1.0], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    found = {level: when_reached([run], level) for level in LEVELS}
    assert {level: when.epochs.median for level, when in found.items()} == {50: 3, 80: 3, 90: 5, 95: 5, 99: 6, 100: 6}
    assert {level: when.seconds.median for level, when in found.items()} == {50: 7, 80: 7, 90: 31, 95: 31, 99: 63, 100: 63}


def test_one_sample_short_of_everything_is_not_everything(tmp_path):
    run = run_with(tmp_path, 0, [1 - 1 / 1_281_167, float(np.float32(0.95))])
    assert when_reached([run], 100).reached == 0
    assert when_reached([run_with(tmp_path, 1, [float(np.float32(0.95))])], 95).reached == 1


def test_a_run_that_never_reaches_a_level_counts_as_never(tmp_path):
    runs = [run_with(tmp_path, seed, [0.4, 0.6 + 0.2 * (seed < 2)]) for seed in range(4)]
    half, most = when_reached(runs, 50), when_reached(runs, 80)
    assert (half.reached, half.epochs.median, half.epochs.high) == (4, 2, 2)
    assert (most.reached, most.epochs.low, most.epochs.median, most.epochs.high) == (2, 2, math.inf, math.inf)
    assert when_reached(runs[:3], 80).epochs.median == 2
    assert when_reached(runs[:3], 80).seconds.high == math.inf


def test_time_that_is_not_known_is_not_made_up(tmp_path):
    run = run_with(tmp_path, 0, [0.2, 0.6, 1.0], [1.0, None, 1.0])
    assert when_reached([run], 50).epochs.median == 2
    assert when_reached([run], 50).seconds is None


def test_no_measurement_is_no_answer(tmp_path):
    assert when_reached([], 50) is None
    assert when_reached([run_with(tmp_path, 0, [None, None])], 50) is None


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_against_plain_python(seeds, tmp_path):
    all_lines = [lines("nearest-etf", seed, 30, every=3) for seed in range(seeds)]
    runs = [read_run(write_run(tmp_path, head="nearest-etf", seed=seed, lines=all_lines[seed])) for seed in range(seeds)]
    for level in LEVELS:
        firsts = [next(line["epoch"] for line in run if line.get("train", {}).get("top1", 0) >= level / 100) for run in all_lines]
        seconds = [sum(line["seconds"] for line in run[:first]) for run, first in zip(all_lines, firsts, strict=True)]
        found = when_reached(runs, level)
        assert (found.epochs.median, found.epochs.low, found.epochs.high) == (np.median(firsts), min(firsts), max(firsts))
        assert found.seconds.median == pytest.approx(np.median(seconds))


def test_without_times_there_are_none_for_a_level_that_was_not_reached_either(tmp_path):
    run = run_with(tmp_path, 0, [0.2, 0.6], [None, None])
    assert when_reached([run], 80).epochs.median == math.inf
    assert when_reached([run], 80).seconds is None


def experiments(tmp_path):
    return by_experiment(read_records([tmp_path]).runs)


@pytest.mark.parametrize("unit", ["epochs", "seconds"])
def test_time_to_accuracy_equals_an_independent_computation(unit, tmp_path):
    written = [lines("nearest-etf", seed, 40) for seed in range(3)]
    for seed in range(3):
        write_run(tmp_path, head="nearest-etf", seed=seed, lines=written[seed])
    table = reaching_table(experiments(tmp_path), unit)
    for cell, level, record in zip(table.rows[0][2:], LEVELS, table.csv_rows, strict=True):
        firsts = [next(line["epoch"] for line in run if line["train"]["top1"] >= level / 100) for run in written]
        times = [sum(line["seconds"] for line in run[:first]) for run, first in zip(written, firsts, strict=True)]
        values = firsts if unit == "epochs" else times
        assert cell.text == f"{np.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
        assert record["median"] == pytest.approx(np.median(values))
        assert (record["reached"], record["seeds"]) == (3, 3)


def test_levels_that_are_not_reached_are_said(tmp_path):
    for seed, top1 in enumerate((0.6, 0.85, 0.85)):
        write_run(tmp_path, seed=seed, lines=[{"epoch": 1, "seconds": 2.5, "train": {"top1": top1}}])
    table = reaching_table(experiments(tmp_path), "seconds")
    assert [cell.text for cell in table.rows[0][2:]] == ["2.5 (2.5 to 2.5)", "2.5 (2.5 to never), 2 of 3", *["not reached"] * 4]
    assert table.csv_rows[1]["high"] is None


def test_no_table_of_seconds_where_none_were_recorded(tmp_path):
    write_run(tmp_path, lines=[{"epoch": 1, "train": {"top1": 1.0}}])
    assert reaching_table(experiments(tmp_path), "seconds") is None
    assert len(reaching_table(experiments(tmp_path), "epochs").rows) == 1
