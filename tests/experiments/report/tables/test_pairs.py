from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.tables.formats import csv_text, latex
from guided_collapse.experiments.report.tables.pairs import pairs_table
from tests.experiments.report.made_up import write_run


def write(root, head, by_seed, experiment="toy", state="finished"):
    """Runs with these test accuracies after epochs 1, 2, ..., None where nothing was measured."""
    for seed, accuracies in by_seed.items():
        lines = [{"epoch": epoch, "seconds": 1.0} for epoch in range(1, len(accuracies) + 1)]
        for line, accuracy in zip(lines, accuracies, strict=True):
            if accuracy is not None:
                line |= {"train": {"top1": 0.5}, "test": {"top1": accuracy}}
        write_run(root, experiment, head, seed, lines=lines, state=state)


def table_of(root):
    return pairs_table(by_experiment(read_records([root]).runs))


def test_differences_are_taken_seed_by_seed(tmp_path):
    # The medians are equal; on each seed but the last the fixed frame is ahead.
    write(tmp_path, "cosine", {0: [0.1, 0.70], 1: [0.1, 0.80], 2: [0.1, 0.90]})
    write(tmp_path, "fixed-etf", {0: [0.9, 0.80], 1: [0.9, 0.81], 2: [0.9, 0.75]})
    write(tmp_path, "nearest-etf", {0: [0.5, 0.80], 1: [0.5, 0.80], 2: [0.5, 0.80]})
    table = table_of(tmp_path)
    assert table.columns == ("experiment", "head", "ahead of standard", "ahead of fixed")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["toy", "fixed-etf", "+1.00 (-15.00 to +10.00), 2 of 3", "-"],
        ["toy", "nearest-etf", "+0.00 (-10.00 to +10.00), 1 of 3", "+0.00 (-1.00 to +5.00), 1 of 3"],
    ]
    assert r"$+1.00\,^{+10.00}_{-15.00}$, 2 of 3" in latex(table)
    assert csv_text(table).splitlines()[0] == "experiment,head,against,median,low,high,seeds,ahead"
    assert csv_text(table).splitlines()[1].endswith(",3,2")


def test_only_seeds_and_epochs_that_both_have_count(tmp_path):
    write(tmp_path, "cosine", {0: [0.5, None, 0.6], 1: [0.5, 0.6, 0.7], 2: [0.5, 0.6, 0.7], 3: [0.1, 0.1, 0.1]})
    write(tmp_path, "nearest-etf", {0: [0.6, 0.9, None], 1: [0.5, 0.65], 2: [None, None]}, state="unfinished")
    write(tmp_path, "nearest-etf", {3: [0.9, 0.9, 0.9]}, state="failed")
    assert [cell.text for cell in table_of(tmp_path).rows[0][2:]] == ["+7.50 (+5.00 to +10.00), 2 of 2"]


def test_there_is_none_where_no_two_heads_share_two_seeds(tmp_path):
    write(tmp_path, "cosine", {0: [0.5], 1: [0.5]})
    write(tmp_path, "nearest-etf", {1: [0.6], 2: [0.6]})
    write(tmp_path, "fixed-etf", {0: [0.5], 1: [0.5]}, experiment="other")
    assert table_of(tmp_path) is None
    assert pairs_table([]) is None


def test_heads_without_test_samples_take_no_column(tmp_path):
    for head in ("cosine", "fixed-etf"):
        write(tmp_path, head, {0: [0.5], 1: [0.6]})
    for seed in range(2):
        write_run(tmp_path, "ufm-10", "nearest-etf-detached", seed, num_test=0)
    assert table_of(tmp_path).columns == ("experiment", "head", "ahead of standard")
