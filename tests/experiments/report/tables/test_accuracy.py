"""Cells and records against plain Python on the lines that were written."""

import statistics

import pytest

from guided_collapse.experiments.records.declared.quantities import TEST_TOP1, TRAIN_TOP1
from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.tables.accuracy import accuracy_table
from tests.experiments.report.made_up import lines, write_run


def table_of(tmp_path, quantity, epochs):
    return accuracy_table(by_experiment(read_records([tmp_path]).runs), quantity, epochs)


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
def test_cells_equal_an_independent_computation(seeds, quantity, tmp_path):
    lengths = [12, 12, 7, 12, 12]
    for head in ("cosine", "nearest-etf"):
        for seed in range(seeds):
            write_run(tmp_path, head=head, seed=seed, lines=lines(head, seed, lengths[seed]))
    table = table_of(tmp_path, quantity, (5, 10, 200))
    assert table.columns == ("experiment", "source", *(["cosine", "nearest-etf"] * 3))
    expected = [
        expected_cell([lines(head, seed, lengths[seed]) for seed in range(seeds)], quantity.split, epoch)
        for epoch in (5, 10, 200)
        for head in ("cosine", "nearest-etf")
    ]
    assert [cell.text for cell in table.rows[0]] == ["toy", "ours", *expected]
    assert any("[epoch n]" in note for note in table.notes)
    for record, text in zip(table.csv_rows, expected, strict=True):
        assert f"{record['median']:.2f}" == text.split()[0]
        assert record["seeds"] == seeds


def test_a_failed_run_is_in_no_median_and_is_said(tmp_path):
    written = [lines("cosine", seed, 6) for seed in range(3)]
    for seed in range(3):
        write_run(tmp_path, seed=seed, lines=written[seed], state="failed" if seed == 1 else "finished")
    table = table_of(tmp_path, TRAIN_TOP1, (6,))
    assert table.rows[0][2].text == expected_cell([written[0], written[2]], "train", 6)
    assert "Seeds in toy: 2 (1 failed and left out) of each head." in table.notes


def test_the_papers_figures_stand_beside_ours(tmp_path):
    write_run(tmp_path, "cifar10-resnet18", "nearest-etf", epochs=3)
    write_run(tmp_path, "imagenet-resnet50", "nearest-etf-detached", epochs=3)
    write_run(tmp_path, "imagenet-resnet50", "nearest-etf", epochs=3)
    table = table_of(tmp_path, TEST_TOP1, (50, 200))
    rows = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in table.rows}
    assert rows["cifar10-resnet18", "paper"] == ["81.76 (81.4 to 82.0)", "-", "84.78 (84.3 to 85.1)", "-"]
    assert rows["imagenet-resnet50", "paper"] == ["-", "63.40 (63.2 to 63.8)", "-", "65.36 (65.0 to 65.7)"]
    assert any(note.startswith("paper: as printed") for note in table.notes)
    papers = [record for record in table.csv_rows if record["source"] == "paper"]
    assert {"cosine", "fixed-etf", "nearest-etf"} <= {record["head"] for record in papers}


def test_the_highest_median_of_ours_is_marked(tmp_path):
    for head in ("cosine", "fixed-etf", "nearest-etf"):
        write_run(tmp_path, "cifar10-resnet18", head, epochs=100)
    ours, paper = table_of(tmp_path, TRAIN_TOP1, (50,)).rows
    assert [cell.best for cell in ours] == [False, False, False, False, True]
    assert not any(cell.best for cell in paper)


def test_no_test_samples_no_table(tmp_path):
    write_run(tmp_path, num_test=0)
    assert table_of(tmp_path, TEST_TOP1, (5,)) is None
    assert table_of(tmp_path, TRAIN_TOP1, (5,)) is not None
