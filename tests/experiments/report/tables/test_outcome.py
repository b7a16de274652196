import math
from statistics import median

import pytest

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.tables.outcome import outcome, outcome_table, outcomes_table
from tests.experiments.report.made_up import lines, write_run


def experiments_of(root):
    return by_experiment(read_records([root]).runs)


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_with_test_samples_it_is_the_accuracy_on_them_at_the_end(tmp_path):
    for seed in range(3):
        write_run(tmp_path, head="fixed-etf", seed=seed, epochs=7)
    (row,) = texts(outcome_table(*experiments_of(tmp_path)))
    ends = [lines("fixed-etf", seed, 7)[-1] for seed in range(3)]

    def described(values, form):
        return form.format(median(values), min(values), max(values))

    assert row == [
        "fixed-etf",
        described([100 * end["test"]["top1"] for end in ends], "{:.2f} ({:.2f} to {:.2f})"),
        described([end["train"]["loss"] for end in ends], "{:.4g} ({:.4g} to {:.4g})"),
        described([end["train"]["nc1"] for end in ends], "{:.4g} ({:.4g} to {:.4g})"),
    ]


def test_free_features_are_told_by_when_the_loss_is_near_the_least(tmp_path):
    def losses(*values):
        return [
            {"epoch": place, "seconds": 1.0, "train": {"loss": loss, "top1": 1.0}} for place, loss in enumerate(values, start=1)
        ]

    known = {"num_test": 0, "loss_lower_bound": 1.0, "margins": None}
    write_run(tmp_path, "ufm-9", "fixed-etf", 0, lines=losses(2.0, 1.0100001, 1.01, 1.0), **known)
    write_run(tmp_path, "ufm-9", "fixed-etf", 1, lines=losses(1.005, 1.2, 1.0, 1.0), **known)
    write_run(tmp_path, "ufm-9", "cosine", 0, lines=losses(2.0, 1.5, 1.4, 1.3), **known)
    found = outcome(*experiments_of(tmp_path))
    assert found.title == "epochs to 1.01 times the least loss"
    assert (found.spreads["fixed-etf"].low, found.spreads["fixed-etf"].median, found.spreads["fixed-etf"].high) == (1, 2, 3)
    assert found.spreads["cosine"].median == math.inf
    assert [row[1] for row in texts(outcome_table(*experiments_of(tmp_path)))] == ["never", "2 (1 to 3)"]


@pytest.mark.parametrize(
    ("experiment", "known"),
    [("toy", {"loss_lower_bound": None}), ("ufm-9", {"loss_lower_bound": None}), ("ufm-9", {"num_classes": 9, "feature_dim": 7})],
)
def test_without_test_samples_and_a_bound_that_is_reached_it_is_the_train_accuracy(tmp_path, experiment, known):
    write_run(tmp_path, experiment, epochs=1, num_test=0, **known)
    found = outcome(*experiments_of(tmp_path))
    assert found.title == "train accuracy after 1 epoch, %"
    assert found.spreads["cosine"].median == pytest.approx(100 * lines(epochs=1)[0]["train"]["top1"])


def test_the_title_says_over_how_many_seeds_and_a_note_where_heads_differ(tmp_path):
    write_run(tmp_path, head="cosine", epochs=2)
    table = outcome_table(*experiments_of(tmp_path))
    assert (table.title, table.notes) == ("Results of one seed", ())
    write_run(tmp_path, head="cosine", seed=1, epochs=2)
    table = outcome_table(*experiments_of(tmp_path))
    assert (table.title, table.notes) == ("Results: median and range over 2 seeds", ())
    write_run(tmp_path, head="cosine", seed=2, epochs=2, state="failed")
    table = outcome_table(*experiments_of(tmp_path))
    assert table.title == "Results: median and range over seeds"
    assert table.notes == ("Seeds in toy: 2 (1 failed and left out) of each head.",)


def test_one_table_has_every_experiment_and_every_head(tmp_path):
    write_run(tmp_path, "a", "cosine", epochs=2)
    write_run(tmp_path, "b", "fixed-etf", epochs=3)
    write_run(tmp_path, "b", "nearest-etf", epochs=3, state="failed")
    table = outcomes_table(experiments_of(tmp_path))
    assert table.columns == ("experiment", "result", "cosine", "fixed-etf", "nearest-etf")
    first, second = (
        f"{100 * lines(head, 0, epochs)[-1]['test']['top1']:.2f}" for head, epochs in (("cosine", 2), ("fixed-etf", 3))
    )
    assert texts(table) == [
        ["a", "test accuracy after 2 epochs, %", first, "-", "-"],
        ["b", "test accuracy after 3 epochs, %", "-", second, "-"],
    ]
