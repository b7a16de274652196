"""Cells and numbers against plain Python on the lines that were written, and their text in every format."""

import csv
import io
import statistics

import numpy as np
import pytest
from pandas import DataFrame, MultiIndex

from guided_collapse.experiments.records import QUANTITIES, TEST_TOP1, TRAIN_TOP1, SearchRecord, Trial
from guided_collapse.experiments.report.formats import Table, csv_text, latex, markdown, plain_text
from guided_collapse.experiments.report.summaries import LEVELS
from guided_collapse.experiments.report.tables import (
    accuracy_table,
    final_table,
    outcome_table,
    pairs_table,
    paper_accuracy,
    reaching_table,
    runs_table,
    search_table,
)
from tests.experiments.report.made_up import experiments, lines, write_run, write_runs


def rows(table):
    return table.cells.to_numpy().tolist()


def expected_cell(all_lines, split, epoch):
    used = [[line for line in run if line["epoch"] <= epoch and split in line][-1] for run in all_lines]
    values = [100 * line[split]["top1"] for line in used]
    at = sorted({line["epoch"] for line in used})
    text = f"{statistics.median(values):.2f}"
    if len(values) > 1:
        text += f" ({min(values):.2f} to {max(values):.2f})"
    if at != [epoch]:
        text += f" [epoch {at[0]}]" if len(at) == 1 else f" [epoch {at[0]} to {at[-1]}]"
    return text


@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("quantity", [TRAIN_TOP1, TEST_TOP1])
def test_accuracies_equal_an_independent_computation(seeds, quantity, tmp_path):
    lengths, heads = [12, 12, 7, 12, 12], ("cosine", "nearest-etf")
    written = {(head, seed): lines(head, seed, lengths[seed]) for head in heads for seed in range(seeds)}
    write_runs(tmp_path, written)
    table = accuracy_table(experiments(tmp_path), quantity, (5, 10, 200))
    assert table.columns == ["experiment", "source", *(["cosine", "nearest-etf"] * 3)]
    assert table.groups == [("epoch 5", 2), ("epoch 10", 2), ("epoch 200", 2)]
    of_heads = [[written[head, seed] for seed in range(seeds)] for head in heads]
    expected = [expected_cell(of_head, quantity.split, epoch) for epoch in (5, 10, 200) for of_head in of_heads]
    assert rows(table) == [["toy", "ours", *expected]]
    assert any("[epoch n]" in note for note in table.notes)
    for numbers, text in zip(table.numbers, expected, strict=True):
        assert (f"{numbers['median']:.2f}", numbers["seeds"]) == (text.split()[0], seeds)


def test_a_failed_run_is_in_no_median_and_is_said(tmp_path):
    written = [lines("cosine", seed, 6) for seed in range(3)]
    for seed in range(3):
        write_run(tmp_path, seed=seed, lines=written[seed], state="failed" if seed == 1 else "finished")
    table = accuracy_table(experiments(tmp_path), TRAIN_TOP1, (6,))
    assert rows(table)[0][2] == expected_cell([written[0], written[2]], "train", 6)
    assert "Seeds in toy: 2 (1 failed and left out) of each head." in table.notes


def test_the_papers_numbers_stand_beside_ours_and_the_highest_median_of_ours_is_bold(tmp_path):
    for head in ("cosine", "nearest-etf"):
        write_run(tmp_path, "cifar10-resnet18", head, epochs=60)
    for head in ("nearest-etf-detached", "nearest-etf"):
        write_run(tmp_path, "imagenet-resnet50", head, epochs=3, num_test=0)
    test, train = (accuracy_table(experiments(tmp_path), quantity, (50,)) for quantity in (TEST_TOP1, TRAIN_TOP1))
    assert rows(test)[1] == ["cifar10-resnet18", "paper", "80.47 (79.4 to 82.6)", "81.76 (81.4 to 82.0)"]
    # On ImageNet the paper has no gradient through the solve.
    assert rows(train)[3] == ["imagenet-resnet50", "paper", "58.35 (58.0 to 59.1)", "-", "74.09 (73.8 to 74.5)"]
    assert test.bold == {(0, 3)}
    papers = [numbers for numbers in test.numbers if numbers["source"] == "paper"]
    assert [numbers["head"] for numbers in papers] == ["cosine", "fixed-etf", "nearest-etf"]
    assert papers[1] | {"measured_at": 0} == papers[1] | {"median": 80.63, "low": 79.4, "high": 81.8, "seeds": 5, "measured_at": 0}
    assert paper_accuracy("train", "digits") == {}


def write_accuracies(root, head, by_seed, experiment="toy", state="finished"):
    """Runs with these test accuracies after epochs 1, 2, ..., None where nothing was measured."""
    for seed, values in by_seed.items():
        measured = [{} if value is None else {"train": {"top1": 0.5}, "test": {"top1": value}} for value in values]
        found = [{"epoch": epoch, "seconds": 1.0, **own} for epoch, own in enumerate(measured, 1)]
        write_run(root, experiment, head, seed, lines=found, state=state)


def test_differences_are_taken_seed_by_seed(tmp_path):
    # The medians are equal; on each seed but the last the fixed frame is ahead.
    write_accuracies(tmp_path, "cosine", {0: [0.1, 0.70], 1: [0.1, 0.80], 2: [0.1, 0.90]})
    write_accuracies(tmp_path, "fixed-etf", {0: [0.9, 0.80], 1: [0.9, 0.81], 2: [0.9, 0.75]})
    write_accuracies(tmp_path, "nearest-etf", {0: [0.5, 0.80], 1: [0.5, 0.80], 2: [0.5, 0.80]})
    write_run(tmp_path, "ufm-10", "nearest-etf-detached", num_test=0)  # without a column
    table = pairs_table(experiments(tmp_path))
    assert table.columns == ["experiment", "head", "ahead of cosine", "ahead of fixed-etf"]
    assert rows(table) == [
        ["toy", "fixed-etf", "+1.00 (-15.00 to +10.00), 2 of 3", "-"],
        ["toy", "nearest-etf", "+0.00 (-10.00 to +10.00), 1 of 3", "+0.00 (-1.00 to +5.00), 1 of 3"],
    ]
    assert r"$+1.00\,^{+10.00}_{-15.00}$, 2 of 3" in latex(table)
    assert csv_text(table).splitlines()[0] == "experiment,head,against,median,low,high,seeds,ahead"
    assert csv_text(table).splitlines()[1].endswith(",3,2")


def test_of_pairs_only_seeds_and_epochs_that_both_have_count(tmp_path):
    write_accuracies(tmp_path, "cosine", {0: [0.5, None, 0.6], 1: [0.5, 0.6, 0.7], 2: [0.5, 0.6, 0.7], 3: [0.1, 0.1, 0.1]})
    write_accuracies(tmp_path, "nearest-etf", {0: [0.6, 0.9, None], 1: [0.5, 0.65], 2: [None, None]}, state="unfinished")
    write_accuracies(tmp_path, "nearest-etf", {3: [0.9, 0.9, 0.9]}, state="failed")
    assert rows(pairs_table(experiments(tmp_path)))[0][2:] == ["+7.50 (+5.00 to +10.00), 2 of 2"]
    write_accuracies(tmp_path, "fixed-etf", {0: [0.5], 1: [0.5]}, experiment="other")
    assert pairs_table(experiments(tmp_path)[:1]).cells.empty


def test_the_end_of_training_equals_an_independent_computation(tmp_path):
    written = {(head, seed): lines(head, seed, 5 + seed) for head in ("cosine", "fixed-etf") for seed in range(2)}
    write_runs(tmp_path, written)
    table = final_table(experiments(tmp_path))
    assert table.columns == ["experiment", "quantity", "cosine", "fixed-etf"]
    usual = [quantity for quantity in QUANTITIES if not quantity.occasional]
    for row, quantity in zip(rows(table), usual, strict=True):
        for cell, head in zip(row[2:], ("cosine", "fixed-etf"), strict=True):
            values = [written[head, seed][-1][quantity.split][quantity.name] for seed in range(2)]
            factor, form = (100, "{:.2f}") if quantity.percent else (1, "{:.4g}")
            median, low, high = (form.format(factor * value) for value in (statistics.median(values), *sorted(values)))
            assert cell == f"{median} ({low} to {high})"
    assert "Last epoch in toy: 5 to 6." in table.notes


@pytest.mark.parametrize("unit", ["epochs", "seconds"])
def test_time_to_accuracy_equals_an_independent_computation(unit, tmp_path):
    written = [lines("nearest-etf", seed, 40) for seed in range(3)]
    write_runs(tmp_path, {("nearest-etf", seed): written[seed] for seed in range(3)})
    table = reaching_table(experiments(tmp_path), unit)
    for cell, level, numbers in zip(rows(table)[0][2:], LEVELS, table.numbers, strict=True):
        firsts = [next(line["epoch"] for line in run if line["train"]["top1"] >= level / 100) for run in written]
        times = [sum(line["seconds"] for line in run[:first]) for run, first in zip(written, firsts, strict=True)]
        values = firsts if unit == "epochs" else times
        assert cell == f"{np.median(values):.4g} ({min(values):.4g} to {max(values):.4g})"
        assert (numbers["median"], numbers["reached"], numbers["seeds"]) == (pytest.approx(np.median(values)), 3, 3)


def test_levels_that_are_not_reached_and_times_that_are_unknown_are_said(tmp_path):
    for seed, top1 in enumerate((0.6, 0.85, 0.85)):
        write_run(tmp_path, seed=seed, lines=[{"epoch": 1, "seconds": 2.5, "train": {"top1": top1}}])
    write_run(tmp_path, "timeless", lines=[{"epoch": 1, "train": {"top1": 1.0}}])
    timeless, toy = experiments(tmp_path)
    table = reaching_table([toy], "seconds")
    assert rows(table)[0][2:] == ["2.5 (2.5 to 2.5)", "2.5 (2.5 to never), 2 of 3", *["not reached"] * 4]
    assert table.numbers[1]["high"] is None
    assert (len(reaching_table([timeless], "seconds").cells), len(reaching_table([timeless], "epochs").cells)) == (0, 1)


def test_the_outcome_is_the_accuracy_at_the_end_beside_margin_loss_variability_and_time(tmp_path):
    written = [lines("fixed-etf", seed, 7) for seed in range(3)]
    for seed, found in enumerate(written):
        found[-1]["test"]["top1"] = 0.5 + 0.1 * seed
        write_run(tmp_path, head="fixed-etf", seed=seed, lines=found)
    write_run(tmp_path, head="linear", lines=written[0], loss_lower_bound=None)
    ends = [found[-1] for found in written]
    cells = {
        ("higher is better", "test accuracy, %"): [100 * end["test"]["top1"] for end in ends],
        ("higher is better", "margin"): [end["train"]["mean_cosine_margin"] for end in ends],
        ("lower is better", "loss - floor"): [end["train"]["loss"] - 0.0342 for end in ends],
        ("lower is better", "NC1"): [end["train"]["nc1"] for end in ends],
        ("lower is better", "seconds"): [sum(line["seconds"] for line in found) for found in written],
    }
    table = outcome_table(*experiments(tmp_path))
    assert list(table.cells.columns) == [("", "head"), *cells]
    linear, fixed = rows(table)
    assert (linear[0], fixed[0]) == ("nn.Linear", "Fixed ETF")
    low, median, high = (f"{value:.2f}" for value in sorted(cells["higher is better", "test accuracy, %"]))
    medians = [
        f"{statistics.median(values):.{digits}g}" for digits, values in zip((3, 2, 2, 3), list(cells.values())[1:], strict=True)
    ]
    assert fixed[1:] == [f"{median} ({low} to {high})", *medians]
    assert linear[3] == f"{ends[0]['train']['loss']:.2g}"
    assert table.notes[0].endswith("0 for nn.Linear; 0.0342 for Fixed ETF.")
    assert table.notes[1] == "Seeds in toy: linear 1, fixed-etf 3."


def test_free_features_begin_with_the_epochs_and_leave_out_what_is_not_measured(tmp_path):
    write_run(tmp_path, "ufm-10", num_test=0, lines=[{"epoch": 1, "train": {"loss": 9.0}}, {"epoch": 2, "train": {"loss": 0.0342}}])
    table = outcome_table(*experiments(tmp_path))
    assert (table.columns, rows(table)) == (["head", "epochs to 1.01 x floor", "loss - floor"], [["Cosine", "2", "0"]])
    assert table.notes == ["Floor, the least loss that the scale of a head allows: 0.0342 for Cosine."]


def test_every_run_is_listed(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    write_run(tmp_path, seed=0, epochs=20, commit=commit)
    write_run(tmp_path, seed=1, epochs=3, state="failed")
    write_run(tmp_path, seed=2, epochs=0, state="unfinished", commit=None)
    table = runs_table(experiments(tmp_path))
    names = ("seed", "state", "epochs", "planned")
    found = [tuple(numbers[name] for name in names) for numbers in table.numbers]
    assert found == [(0, "finished", 20, 20), (1, "failed", 3, 20), (2, "unfinished", 0, 20)]
    assert table.numbers[0]["training seconds"] == pytest.approx(sum(line["seconds"] for line in lines()), abs=0.01)
    assert [row[-2:] for row in rows(table)] == [["0123456", "-"], ["0123abc", "the loss is not finite"], ["-", "-"]]


def test_a_search_shows_every_setting_and_what_was_chosen():
    tried = [({"scale": 5}, 0, 0.5), ({"scale": 5}, 1, 0.75), ({"scale": 9.4}, 0, 0.9), ({"scale": 9.4}, 1, None)]
    trials = tuple(Trial("cosine", own, seed, None if top1 is None else {"top1": top1}) for own, seed, top1 in tried)
    plan = {
        "heads": ("cosine",),
        "grid": {"scale": [5, 9.4]},
        "choice": {"cosine": {"scale": 5}},
        "rule": "best",
        "planned": "then",
    }
    plan |= {"validation_fraction": 0.25, "trial_epochs": 1, "trial_seeds": (7, 8), "seeds": (0,)}
    search = SearchRecord("toy", {}, trials=trials, **plan)
    table = search_table([search])
    assert [row[2:] for row in rows(table)] == [["scale=5", "62.50", "chosen"], ["scale=9.4", "diverged", "-"]]
    assert [row[:2] for row in rows(table)] == [["toy", "cosine"]] * 2
    assert table.bold == {(0, column) for column in range(5)}
    assert "grid scale 5, 9.4; 1 epoch on 75 % of the training images, seed 7, 8. Planned then, decided not yet" in table.notes[0]


TABLE = Table(
    "toy",
    "A title with 5 %",
    DataFrame(
        [["<script>|*_`", "1e-09", "88.71 (88.50 to never)", "5 [epoch 3]", "-"]],
        columns=MultiIndex.from_tuples([("", "na_me"), ("epoch 1", "a"), ("epoch 1", "b"), ("epoch 2", "a"), ("epoch 2", "b")]),
    ),
    [{"name": "<script>|*_`,\n", "value": 0.1 + 0.2, "count": 3}, {"name": "other", "value": None, "count": None}],
    ["A note_with & signs."],
    stub=1,
    bold=frozenset({(0, 2)}),
)


def test_markdown():
    lines = markdown(TABLE).splitlines()
    assert lines[0] == "**A title with 5 %**"
    assert lines[2] == r"| na\_me | epoch 1: a | epoch 1: b | epoch 2: a | epoch 2: b |"
    assert lines[3] == "| --- | --- | --- | --- | --- |"
    assert lines[4] == r"| &lt;script&gt;\|\*\_\` | 1e-09 | **88.71 (88.50 to never)** | 5 \[epoch 3\] | - |"
    assert lines[6] == r"A note\_with &amp; signs."


def test_csv_gives_back_every_digit():
    found = list(csv.DictReader(io.StringIO(csv_text(TABLE), newline="")))
    assert found[0] == {"name": "<script>|*_`,\n", "value": repr(0.1 + 0.2), "count": "3"}
    assert found[1] == {"name": "other", "value": "", "count": ""}


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a", "\t=1", "\n=1", "=cmd|' /C calc'!A0"])
def test_no_text_in_csv_is_a_formula_to_a_spreadsheet_and_numbers_stay_numbers(name):
    table = TABLE._replace(numbers=[{"name": name, "value": -0.5, "count": -3}])
    row = next(csv.reader(io.StringIO(csv_text(table).split("\n", 1)[1], newline="")))
    assert row == [f"'{name}", "-0.5", "-3"]


def test_a_table_for_a_terminal_has_one_line_for_each_row_whatever_it_holds():
    name = "a\nb\x1b[31m\x9b\u202ec"
    table = Table("t", name, DataFrame([[name, "1"]], columns=[name, "x"]), notes=[name])
    assert plain_text(table).splitlines() == ["a b [31m c", "", "a b [31m c  x", "a b [31m c  1", "", "a b [31m c"]


def test_latex_is_a_booktabs_table_with_medians_as_in_the_paper():
    lines = [line.strip() for line in latex(TABLE).splitlines()]
    assert r"\caption{A title with 5 \%.}" in lines
    assert r"\begin{tabular}{lcccc}" in lines
    assert r"na\_me & a & b & a & b \\" in lines
    assert r"& \multicolumn{2}{c}{epoch 1} & \multicolumn{2}{c}{epoch 2} \\" in lines
    cells = [r"\textless{}script\textgreater{}\textbar{}*\_`", r"$1{\cdot}10^{-9}$"]
    cells += [r"{\boldmath\bfseries $88.71\,^{\text{never}}_{88.50}$}", "$5$ [epoch 3]", "-"]
    assert " & ".join(cells) + r" \\" in lines
    assert [line for line in lines if "rule" in line] == [r"\toprule", r"\midrule", r"\bottomrule"]
    table = Table("t", "a_b & 5% of $x$ #1 {y} ~^\\", TABLE.cells, stub=1)
    escaped = r"a\_b \& 5\% of \$x\$ \#1 \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{}."
    assert rf"\caption{{{escaped}}}" in latex(table)
