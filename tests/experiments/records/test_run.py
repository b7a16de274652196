import json

import numpy as np
import pytest

from guided_collapse.experiments.records.fields import RecordError
from guided_collapse.experiments.records.run import read_run
from tests.experiments.report.made_up import config, write_run


def test_a_run_is_what_its_folder_holds(tmp_path):
    folder = write_run(tmp_path, "toy", "nearest-etf", 3, epochs=4, trace=True, protocol_differences=["centering"])
    run = read_run(folder)
    assert (run.experiment, run.head, run.seed, run.state, run.error) == ("toy", "nearest-etf", 3, "finished", None)
    assert (run.num_classes, run.feature_dim, run.num_train, run.num_test, run.global_batch) == (10, 64, 300, 100, 64)
    assert (run.protocol, run.protocol_differences, run.commit) == ("fair", ("centering",), "0123abc")
    assert run.configuration["optimizer"] == "agd"
    np.testing.assert_array_equal(run.epochs.numbers, [1, 2, 3, 4])
    assert set(run.margins) == {"train", "test"}
    assert len(run.trace.epochs) == 4
    assert run.problems == ()


def test_the_model_is_never_read(tmp_path):
    folder = write_run(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    (folder / "last.ckpt").mkdir()
    assert read_run(folder).state == "finished"


def test_states(tmp_path):
    failed = read_run(write_run(tmp_path, seed=0, state="failed"))
    assert (failed.state, failed.error) == ("failed", "the loss is not finite")
    assert read_run(write_run(tmp_path, seed=1, state="unfinished")).state == "unfinished"
    resumed = write_run(tmp_path, seed=2, state="failed")
    (resumed / "model.safetensors").touch()
    assert read_run(resumed).state == "finished"
    unknown = write_run(tmp_path, seed=3, state="failed")
    (unknown / "failed.json").write_text("?")
    assert read_run(unknown).error.startswith("unknown: failed.json cannot be used")


def test_records_of_a_finished_run_may_be_kept_without_its_model(tmp_path):
    kept = write_run(tmp_path, seed=0)
    (kept / "model.safetensors").unlink()
    assert read_run(kept).state == "finished"
    (kept / "margins.npz").unlink()
    assert read_run(kept).state == "unfinished"
    shorter = write_run(tmp_path, seed=1, epochs=19, configuration={"epochs": 20})
    (shorter / "model.safetensors").unlink()
    assert read_run(shorter).state == "unfinished"


@pytest.mark.parametrize("left", [0, 2, 5])
def test_a_run_with_a_model_that_has_lost_epochs_is_not_finished(left, tmp_path):
    folder = write_run(tmp_path, epochs=6)
    kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:left]
    (folder / "metrics.jsonl").write_text("".join(kept))
    run = read_run(folder)
    assert run.state == "unfinished"
    assert len(run.problems) == 1
    assert f"the epochs after {left} of 6, which metrics.jsonl lacks" in run.problems[0]
    (folder / "failed.json").write_text('{"error": "no space left"}')
    assert (read_run(folder).state, read_run(folder).error) == ("failed", "no space left")


def test_a_run_that_went_further_than_planned_and_fields_from_later_versions_are_taken(tmp_path):
    changes = {"configuration": {"epochs": 4, "later": [1]}, "later": {"a": None}}
    run = read_run(write_run(tmp_path, epochs=6, **changes))
    assert (run.state, run.planned, run.problems) == ("finished", 4, ())


@pytest.mark.parametrize("epochs", [None, True, "6"])
def test_a_configuration_that_does_not_say_how_long_leaves_it_to_the_model(epochs, tmp_path):
    run = read_run(write_run(tmp_path, epochs=2, configuration={"epochs": epochs}))
    assert (run.state, run.planned) == ("finished", None)


@pytest.mark.parametrize("accuracy", [-0.5, 1.5, 1e90])
def test_an_accuracy_that_is_no_share_is_refused(accuracy, tmp_path):
    measured = [{"epoch": 1, "train": {"top1": 0.5}}, {"epoch": 2, "train": {"top1": accuracy}}]
    with pytest.raises(RecordError, match=r"top1 of train must be from 0 to 1 in every epoch of metrics\.jsonl"):
        read_run(write_run(tmp_path, lines=measured))


def test_a_run_that_has_just_begun_has_no_epochs(tmp_path):
    folder = write_run(tmp_path, state="unfinished")
    (folder / "metrics.jsonl").unlink()
    assert len(read_run(folder).epochs.numbers) == 0


@pytest.mark.parametrize("name", ["margins.npz", "trace.npz"])
def test_damaged_arrays_leave_the_run_usable(name, tmp_path):
    folder = write_run(tmp_path, trace=True)
    (folder / name).write_bytes(b"PK damaged")
    run = read_run(folder)
    assert len(run.problems) == 1
    assert f"{name} cannot be read" in run.problems[0]
    assert len(run.epochs.numbers) == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"experiment": None},
        {"head": 3},
        {"seed": "0"},
        {"num_classes": 1},
        {"loss_lower_bound": "low"},
        {"configuration": []},
        {"protocol_differences": "none"},
        {"commit": 7},
        {"hardware": "fast"},
    ],
)
def test_a_record_of_another_kind_is_refused(changes, tmp_path):
    folder = write_run(tmp_path)
    (folder / "config.json").write_text(json.dumps({**config(), **changes}))
    with pytest.raises(RecordError, match=r"config\.json.* must be"):
        read_run(folder)


def test_a_foreign_configuration_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "other", "hidden_size": 3}')
    with pytest.raises(RecordError, match="must be the record of a run, with format 1; got format None"):
        read_run(tmp_path)
