"""A table of runs has what the records have, a row for each run and epoch."""

import builtins

import numpy as np
import pytest

from guided_collapse.experiments.report import load_runs
from guided_collapse.experiments.report.run_table import epochs_of
from guided_collapse.lazy import MissingPackageError
from tests.experiments.report.made_up import lines, write_cost, write_run


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path, "toy", "fixed-etf", 0, every=5)
    write_run(tmp_path, "toy", "nearest-etf", 3, epochs=2, state="failed", num_test=0)
    write_run(tmp_path, "toy", "cosine", 1, epochs=0, state="unfinished")
    return tmp_path


def test_there_is_a_row_for_each_run_and_epoch(folder):
    runs = load_runs(folder)
    whole = runs[runs["head"] == "fixed-etf"]
    assert list(whole["epoch"]) == list(range(1, 21))
    assert set(whole["state"]) == {"finished"}
    recorded = lines("fixed-etf", 0, 20, every=5)
    measured = [line.get("train", {}).get("nc1", np.nan) for line in recorded]
    np.testing.assert_array_equal(whole["train_nc1"], measured)
    np.testing.assert_array_equal(whole["seconds"], [line["seconds"] for line in recorded])
    assert whole["test_top1"].notna().sum() == 4
    failed = runs[runs["head"] == "nearest-etf"]
    assert (len(failed), set(failed["state"]), set(failed["seed"])) == (2, {"failed"}, {3})
    assert failed["test_top1"].isna().all()
    assert len(runs) == 22


def test_everything_that_was_recorded_and_asked_for_has_a_column(folder):
    write_run(folder, "odd", "fixed-etf", 0, lines=[{"epoch": 1, "train": {"made_up": 3.5}}], configuration={"widths": [1, 2]})
    runs = load_runs(folder)
    odd = runs[runs["experiment"] == "odd"].iloc[0]
    assert (odd["train_made_up"], odd["configuration_widths"]) == (3.5, (1, 2))
    assert {"train_nearest_center_accuracy", "configuration_batch_size", "loss_lower_bound"} <= set(runs)
    assert not {column for column in runs if "running" in column or column.endswith("_seed")}
    assert set(runs.groupby(["configuration_optimizer", "configuration_temperature"]).groups) == {("agd", 5.0)}
    assert list(runs)[:9][-2:] == ["epoch", "seconds"]
    assert list(runs)[9] == "train_loss"


def test_a_run_of_a_table_has_the_epochs_that_its_records_have(folder):
    runs = load_runs(folder)
    epochs = epochs_of(runs[runs["head"] == "fixed-etf"].iloc[4:])
    assert list(epochs.numbers) == list(range(5, 21))
    assert epochs.of("train", "nc1")[0] == lines("fixed-etf", 0, 20, every=5)[4]["train"]["nc1"]


def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"runs are read from folders; there is no .*nowhere"):
        load_runs(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="at least one run"):
        load_runs(tmp_path)
    write_cost(tmp_path)
    with pytest.raises(ValueError, match="there are only costs"):
        load_runs(str(tmp_path))

    def without_pandas(name, *rest):
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.setattr("guided_collapse.lazy.import_module", without_pandas)
    with pytest.raises(MissingPackageError, match="pip install pandas, or install guided-collapse with its extra notebook"):
        load_runs(tmp_path)
