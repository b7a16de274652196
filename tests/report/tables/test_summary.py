import statistics

import numpy as np
import pytest

from guided_collapse.records.quantities import QUANTITIES
from guided_collapse.records.reading import read_records
from guided_collapse.report.experiment import by_experiment
from guided_collapse.report.tables.reaching import LEVELS
from guided_collapse.report.tables.summary import final_table, reaching_table, runs_table
from tests.report.made_up import lines, write_run


def experiments(tmp_path):
    return by_experiment(read_records([tmp_path]).runs)


def test_the_end_of_training_equals_an_independent_computation(tmp_path):
    written = {(head, seed): lines(head, seed, 5 + seed) for head in ("standard", "fixed") for seed in range(2)}
    for (head, seed), found in written.items():
        write_run(tmp_path, head=head, seed=seed, lines=found)
    table = final_table(experiments(tmp_path))
    assert table.columns == ("experiment", "quantity", "standard", "fixed")
    for row, quantity in zip(table.rows, QUANTITIES, strict=True):
        for cell, head in zip(row[2:], ("standard", "fixed"), strict=True):
            values = [written[head, seed][-1][quantity.split][quantity.name] for seed in range(2)]
            shown = [
                f"{100 * value:.2f}" if quantity.percent else f"{value:.4g}"
                for value in (statistics.median(values), *sorted(values))
            ]
            assert cell.text == f"{shown[0]} ({shown[1]} to {shown[2]})"
    assert "Last epoch in toy: 5 to 6." in table.notes


def test_quantities_that_no_run_has_are_left_out(tmp_path):
    found = lines("standard", 0, 3, test=False)
    for line in found:
        del line["train"]["nc3"]
    write_run(tmp_path, lines=found, num_test=0)
    titles = [row[1].text for row in final_table(experiments(tmp_path)).rows]
    assert titles == [quantity.title for quantity in QUANTITIES if quantity.split == "train" and quantity.name != "nc3"]


def test_nothing_measured_no_table(tmp_path):
    write_run(tmp_path, lines=[{"epoch": 1, "running": {"loss": 1.0, "top1": 1.0}, "seconds": 1.0}])
    assert final_table(experiments(tmp_path)) is None
    assert reaching_table(experiments(tmp_path), "epochs") is None


@pytest.mark.parametrize("unit", ["epochs", "seconds"])
def test_time_to_accuracy_equals_an_independent_computation(unit, tmp_path):
    written = [lines("implicit", seed, 40) for seed in range(3)]
    for seed in range(3):
        write_run(tmp_path, head="implicit", seed=seed, lines=written[seed])
    table = reaching_table(experiments(tmp_path), unit)
    for cell, level, record in zip(table.rows[0][2:], LEVELS, table.records, strict=True):
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
    assert table.records[1]["high"] is None


def test_no_table_of_seconds_where_none_were_recorded(tmp_path):
    write_run(tmp_path, lines=[{"epoch": 1, "train": {"top1": 1.0}}])
    assert reaching_table(experiments(tmp_path), "seconds") is None
    assert len(reaching_table(experiments(tmp_path), "epochs").rows) == 1


def test_every_run_is_listed(tmp_path):
    write_run(tmp_path, seed=0, epochs=20)
    write_run(tmp_path, seed=1, epochs=3, state="failed")
    folder = write_run(tmp_path, seed=2, state="unfinished", commit=None)
    (folder / "metrics.jsonl").unlink()
    table = runs_table(experiments(tmp_path))
    assert [(record["seed"], record["state"], record["epochs"], record["planned"]) for record in table.records] == [
        (0, "finished", 20, 20),
        (1, "failed", 3, 20),
        (2, "unfinished", 0, 20),
    ]
    assert table.records[0]["training seconds"] == pytest.approx(
        sum(line["seconds"] for line in lines("standard", 0, 20)), abs=0.01
    )
    assert table.rows[1][-1].text == "the loss is not finite"
    assert table.rows[2][-2].text == "-"
