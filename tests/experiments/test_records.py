import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from guided_collapse.experiments.errors import DamageError
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.records import in_columns, read_margins, read_records, read_run
from guided_collapse.experiments.run import EpochRecord, read_epoch_records, run_status
from tests.experiments.report.made_up import trace, write_run
from tests.experiments.runs import FREE, placed

RECORDS = Path(__file__).parents[2] / "results" / "records"


def left_out(*paths):
    """The records below the paths, of which something must be left out."""
    with pytest.warns(UserWarning, match="left out: "):
        return read_records(paths)


def zipped(folder, target):
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return target


# What is read


def test_a_run_comes_with_its_facts_and_measurements(tmp_path):
    run = read_run(write_run(tmp_path, "toy", "nearest-etf", 3, epochs=4, trace=True, protocol_differences=("centering",)))
    assert (run.experiment, run.head, run.seed, run.state, run.error) == ("toy", "nearest-etf", 3, "finished", None)
    assert (run.num_classes, run.feature_dim, run.num_train, run.num_test, run.global_batch) == (10, 64, 300, 100, 64)
    assert (run.protocol, run.protocol_differences, run.commit) == ("fair", ("centering",), "0123abc")
    assert (run.configuration["optimizer"], run.planned, run.hardware["cpu"]) == ("agd", 4, "Abacus")
    np.testing.assert_array_equal(run.epochs.numbers, [1, 2, 3, 4])
    assert set(run.margins) == {"train", "test"}
    assert len(run.trace.epochs) == 4


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, folder="deep/er/still")
    own = write_run(tmp_path, seed=2, folder="own")
    (tmp_path / "link").symlink_to(own)
    found = read_records([tmp_path, tmp_path / "toy", own, tmp_path / "link"])
    assert [run.seed for run in found.runs] == [0, 1, 2]
    assert found.skipped == ()


@pytest.mark.parametrize("where", ["archive", "folder with the archive", "both"])
def test_a_zip_archive_is_read_as_the_folder_that_it_holds(where, tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs", seed=seed, trace=True)
    archive = zipped(tmp_path / "runs", tmp_path / "runs.zip")
    expected = read_records([tmp_path / "runs"])
    if where != "both":
        shutil.rmtree(tmp_path / "runs")
    found = left_out(tmp_path) if where == "both" else read_records([archive if where == "archive" else tmp_path])
    for mine, theirs in zip(found.runs, expected.runs, strict=True):
        assert (mine.head, mine.seed, mine.state) == (theirs.head, theirs.seed, theirs.state)
        np.testing.assert_array_equal(mine.epochs.of("train", "nc1"), theirs.epochs.of("train", "nc1"))
        np.testing.assert_array_equal(mine.margins["train"], theirs.margins["train"])
        np.testing.assert_array_equal(mine.trace.samples, theirs.trace.samples)
    assert len(found.skipped) == (2 if where == "both" else 0)


def test_the_committed_records_are_whole():
    found = read_records([RECORDS])
    assert found.skipped == ()
    assert {run.state for run in found.runs} == {"finished"}
    archives = {file.stem for file in RECORDS.rglob("*.zip")}
    searches = {search.experiment for search in found.searches}
    assert {run.experiment for run in found.runs} | searches == archives


def test_states(tmp_path):
    failed = read_run(write_run(tmp_path, seed=0, state="failed"))
    assert (failed.state, failed.error) == ("failed", "the loss is not finite")
    unfinished = write_run(tmp_path, seed=1, state="unfinished")
    assert read_run(unfinished).state == "unfinished"
    (unfinished / "metrics.jsonl").unlink()
    assert len(read_run(unfinished).epochs.numbers) == 0
    (failed.folder / "failed.json").write_text("?")
    with pytest.raises(DamageError, match=r"failed\.json cannot be used"):
        read_run(failed.folder)


@pytest.mark.parametrize("other", ["failed", "unfinished", "finished"])
def test_of_two_records_of_a_seed_the_better_is_kept(other, tmp_path):
    write_run(tmp_path, folder="b", state="finished")
    write_run(tmp_path, folder="a" if other != "finished" else "c", state=other)
    found = left_out(tmp_path)
    assert [run.folder.name for run in found.runs] == ["b"]
    assert "the same experiment, head and seed as" in found.skipped[0]


# What is altered or damaged


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two real runs of a head, of which a test damages the second in a copy."""
    out = tmp_path_factory.mktemp("whole")
    for seed in (0, 1):
        train(replace(FREE, epochs=3, seed=seed, trace=True), placed(out))
    return out


def edit_metrics(folder):
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text().replace('"top1": 1.0', '"top1": 0.5').replace('"epoch": 3', '"epoch":  3'))


def edit_config(folder):
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"scale": 5.0', '"scale": 6.0'))


ALTERATIONS = {
    "edited metrics": (edit_metrics, "metrics.jsonl has changed since the run finished"),
    "empty model": (
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        "model.safetensors has changed since the run finished",
    ),
    "deleted model": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
    "edited config": (edit_config, "config.json was altered: its checksum is wrong"),
    "deleted config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "emptied config": (lambda folder: (folder / "config.json").write_text(""), "config.json cannot be used"),
}


@pytest.mark.parametrize(("alter", "reason"), ALTERATIONS.values(), ids=ALTERATIONS)
def test_an_altered_run_is_named_and_left_out(alter, reason, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "runs")
    folder = tmp_path / "runs" / FREE.experiment / FREE.head / "seed-1"
    alter(folder)
    assert run_status(folder).state == "damaged"
    found = left_out(tmp_path / "runs")
    assert [run.seed for run in found.runs] == [0]
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith(f"{folder}: {reason}")
    in_archive = left_out(zipped(tmp_path / "runs", tmp_path / "runs.zip"))
    assert [run.seed for run in in_archive.runs] == [0]
    assert reason in in_archive.skipped[0]


def test_a_folder_of_something_else_is_named(tmp_path):
    write_run(tmp_path, seed=0)
    for name, text in (("config.json", '{"model_type": "other"}'), ("search.json", "{}")):
        (tmp_path / name.split(".")[0]).mkdir()
        (tmp_path / name.split(".")[0] / name).write_text(text)
    (tmp_path / "broken.zip").write_text("no archive")
    (tmp_path / "file.txt").touch()
    told = "\n".join(left_out(tmp_path, tmp_path / "file.txt").skipped)
    for reason in ("config: config.json cannot be used", "search: search.json cannot be used", "broken.zip: it is", "file.txt"):
        assert reason in told


def test_an_error_if_nothing_is_left(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        read_records([])
    with pytest.raises(ValueError, match="absent does not exist"):
        read_records([tmp_path / "absent"])
    with pytest.raises(ValueError, match="found none"):
        read_records([tmp_path])
    (tmp_path / "config.json").write_text("{}")
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="1 could not be used, for example"):
        read_records([tmp_path])


# Epochs


def test_values_are_at_their_epochs_and_what_is_missing_is_nan():
    lines = (
        {"epoch": 1, "running": {"loss": 9.0}, "seconds": 2.0},
        {"epoch": 2, "seconds": 3.0, "train": {"loss": 0.5, "nc1": None, "other": 3.0}, "test": {"loss": 0.7}},
        {"epoch": 3, "train": {"loss": 0.25}},
    )
    epochs = in_columns([EpochRecord(**line) for line in lines])
    np.testing.assert_array_equal(epochs.numbers, [1, 2, 3])
    np.testing.assert_array_equal(epochs.seconds, [2.0, 3.0, np.nan])
    np.testing.assert_array_equal(epochs.of("train", "loss"), [np.nan, 0.5, 0.25])
    np.testing.assert_array_equal(epochs.of("test", "loss"), [np.nan, 0.7, np.nan])
    np.testing.assert_array_equal(epochs.of("train", "nc1"), [np.nan] * 3)
    assert epochs.last == 3


@pytest.mark.parametrize("line", ['{"epoch": 1, "sec', '{"epoch": 1}', '{"epoch": 2, "train": {"loss": NaN}}', "7"])
def test_a_line_that_is_no_measurement_is_refused(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"epoch": 1}}\n{line}\n')
    with pytest.raises(DamageError, match=r"^metrics\.jsonl "):
        read_epoch_records(tmp_path)


# Arrays


def test_margins_come_sorted_and_a_trace_as_it_was_written_both_in_float64(tmp_path):
    arrays = trace(epochs=(2, 4), classes=3)
    given = {"train": np.array([0.5, -0.25, 1.0], dtype=np.float32)}
    found = read_run(write_run(tmp_path, margins=given, trace=arrays))
    assert set(found.margins) == {"train"}
    np.testing.assert_array_equal(found.margins["train"], [-0.25, 0.5, 1.0])
    for name, array in arrays.items():
        np.testing.assert_array_equal(getattr(found.trace, name), array)
    assert found.margins["train"].dtype == found.trace.samples.dtype == np.float64


def test_nothing_is_unpickled(tmp_path):
    np.savez(tmp_path / "margins.npz", train=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_margins(tmp_path / "margins.npz")
