import json
import os
import shutil
from pathlib import Path

import pytest

from guided_collapse.experiments.records.reading import read_records
from tests.experiments.report.made_up import config, write_cost, write_run


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1, folder="deep/er/still")
    own = write_run(tmp_path, seed=2, folder="own")
    write_cost(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(own)
    records = read_records([tmp_path, tmp_path / "toy", own, tmp_path / "link"])
    assert [run.seed for run in records.runs] == [0, 1, 2]
    assert len(records.costs) == 1
    assert records.skipped == ()


def test_what_cannot_be_used_is_named_and_skipped_with_a_warning(tmp_path):
    write_run(tmp_path, seed=0)
    broken = write_run(tmp_path, seed=1)
    (broken / "metrics.jsonl").write_text("not json\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    (tmp_path / "foreign" / "cost.json").write_text("{}")
    (tmp_path / "file.txt").touch()
    with pytest.warns(UserWarning, match="left out: ") as caught:
        records = read_records([tmp_path, tmp_path / "file.txt"])
    assert [run.seed for run in records.runs] == [0]
    assert len(caught) == len(records.skipped) == 4
    told = "\n".join(records.skipped)
    for name in ("file.txt: it is no folder", "seed-1: line 1 of metrics.jsonl", "foreign: config.json", "foreign: cost.json"):
        assert name in told


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write_run(tmp_path, seed=0)
    closed = write_run(tmp_path, seed=1)
    real = os.scandir

    def scandir(path):
        if os.fspath(path) == os.fspath(closed):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.warns(UserWarning, match="left out: "):
        records = read_records([tmp_path])
    assert [run.seed for run in records.runs] == [0]
    assert records.skipped == (f"{closed}: Permission denied",)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path.name), os.mkfifo])
@pytest.mark.parametrize("name", ["config.json", "cost.json", "metrics.jsonl"])
def test_a_record_that_is_no_file_is_named(name, make, tmp_path):
    write_run(tmp_path, seed=0)
    bad = write_run(tmp_path, seed=1)
    (bad / name).unlink(missing_ok=True)
    make(bad / name)
    with pytest.warns(UserWarning, match="left out: "):
        records = read_records([tmp_path])
    assert len(records.skipped) == 1
    assert f"{bad}: {name} cannot be read" in records.skipped[0]


def test_messages_are_one_short_line_that_can_be_written(tmp_path):
    write_run(tmp_path, seed=0)
    strange = tmp_path / os.fsdecode(b"strange\n\xff")
    strange.mkdir()
    (strange / "config.json").write_text(json.dumps(config(experiment=["x" * 100_000])))
    with pytest.warns(UserWarning, match="left out: "):
        message = read_records([tmp_path]).skipped[0]
    assert "\n" not in message
    assert len(message) < 600
    message.encode("utf-8")


def test_an_error_if_nothing_is_left(tmp_path):
    with pytest.raises(ValueError, match="at least one folder"):
        read_records([])
    with pytest.raises(ValueError, match=r"there is no .*absent"):
        read_records([tmp_path / "absent"])
    with pytest.raises(ValueError, match="none was found"):
        read_records([tmp_path])
    (tmp_path / "config.json").write_text("{}")
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="1 could not be used, the first is"):
        read_records([tmp_path])


def test_costs_alone_are_enough(tmp_path):
    write_cost(tmp_path)
    assert read_records([tmp_path]).runs == ()


@pytest.mark.parametrize("other", ["failed", "unfinished", "finished"])
def test_of_two_records_of_a_seed_the_better_is_kept(other, tmp_path):
    write_run(tmp_path, folder="b", state="finished")
    write_run(tmp_path, folder="a" if other != "finished" else "c", state=other)
    with pytest.warns(UserWarning, match="the same experiment, head and seed as"):
        records = read_records([tmp_path])
    assert [run.folder.name for run in records.runs] == ["b"]
    shutil.rmtree(tmp_path / "b")
    assert len(read_records([tmp_path]).runs) == 1
