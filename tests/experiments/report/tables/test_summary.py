import statistics

import pytest

from guided_collapse.experiments.records.declared.quantities import QUANTITIES
from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.tables.reaching import reaching_table
from guided_collapse.experiments.report.tables.summary import final_table, runs_table
from tests.experiments.report.made_up import lines, write_run


def experiments(tmp_path):
    return by_experiment(read_records([tmp_path]).runs)


def test_the_end_of_training_equals_an_independent_computation(tmp_path):
    written = {(head, seed): lines(head, seed, 5 + seed) for head in ("cosine", "fixed-etf") for seed in range(2)}
    for (head, seed), found in written.items():
        write_run(tmp_path, head=head, seed=seed, lines=found)
    table = final_table(experiments(tmp_path))
    assert table.columns == ("experiment", "quantity", "cosine", "fixed-etf")
    usual = [quantity for quantity in QUANTITIES if not quantity.occasional]
    for row, quantity in zip(table.rows, usual, strict=True):
        for cell, head in zip(row[2:], ("cosine", "fixed-etf"), strict=True):
            values = [written[head, seed][-1][quantity.split][quantity.name] for seed in range(2)]
            shown = [
                f"{100 * value:.2f}" if quantity.percent else f"{value:.4g}"
                for value in (statistics.median(values), *sorted(values))
            ]
            assert cell.text == f"{shown[0]} ({shown[1]} to {shown[2]})"
    assert "Last epoch in toy: 5 to 6." in table.notes


def test_quantities_that_no_run_has_are_left_out(tmp_path):
    found = lines("cosine", 0, 3, test=False)
    for line in found:
        del line["train"]["nc3"]
    write_run(tmp_path, lines=found, num_test=0)
    titles = [row[1].text for row in final_table(experiments(tmp_path)).rows]
    assert titles == [quantity.title for quantity in QUANTITIES if quantity.split == "train" and quantity.name != "nc3"]


def test_nothing_measured_no_table(tmp_path):
    write_run(tmp_path, lines=[{"epoch": 1, "running": {"loss": 1.0, "top1": 1.0}, "seconds": 1.0}])
    assert final_table(experiments(tmp_path)) is None
    assert reaching_table(experiments(tmp_path), "epochs") is None


def test_every_run_is_listed(tmp_path):
    write_run(tmp_path, seed=0, epochs=20)
    write_run(tmp_path, seed=1, epochs=3, state="failed")
    folder = write_run(tmp_path, seed=2, state="unfinished", commit=None)
    (folder / "metrics.jsonl").unlink()
    table = runs_table(experiments(tmp_path))
    assert [(record["seed"], record["state"], record["epochs"], record["planned"]) for record in table.csv_rows] == [
        (0, "finished", 20, 20),
        (1, "failed", 3, 20),
        (2, "unfinished", 0, 20),
    ]
    assert table.csv_rows[0]["training seconds"] == pytest.approx(sum(line["seconds"] for line in lines("cosine", 0, 20)), abs=0.01)
    assert table.rows[1][-1].text == "the loss is not finite"
    assert table.rows[2][-2].text == "-"
