import json
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from guided_collapse.experiments import comparison as room
from guided_collapse.experiments.comparison import compare, comparison_table
from guided_collapse.experiments.training.loop import train
from tests.experiments.training.runs import FREE, placed, records

SHORT = replace(FREE, epochs=3)


def test_the_whole_grid_and_what_is_finished_is_skipped(tmp_path, monkeypatch):
    done = train(replace(SHORT, head="fixed-etf", seed=1), placed(tmp_path))
    before = (done.path / "metrics.jsonl").stat().st_mtime_ns
    comparison = compare(SHORT, ["cosine", "fixed-etf"], [0, 1, 1], placed(tmp_path))
    assert [run.path.relative_to(tmp_path).as_posix() for run in comparison.finished] == [
        *("ufm-10/cosine/seed-0", "ufm-10/fixed-etf/seed-0", "ufm-10/cosine/seed-1", "ufm-10/fixed-etf/seed-1")
    ]
    assert comparison.failed == ()
    assert (done.path / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    def fails_for_fixed(configuration, placement):
        if configuration.head == "fixed-etf":
            raise RuntimeError("out of luck")
        return train(configuration, placement)

    monkeypatch.setattr(room, "train", fails_for_fixed)
    with pytest.warns(RuntimeWarning, match="out of luck"):
        comparison = compare(SHORT, ["fixed-etf", "nearest-etf"], [0], placed(tmp_path))
    assert [run.path.parent.name for run in comparison.finished] == ["nearest-etf"]
    ((run, reason),) = comparison.failed
    assert (run.path.parent.name, reason) == ("fixed-etf", "RuntimeError: out of luck")


def test_table_has_median_and_range(tmp_path):
    comparison = compare(SHORT, ["nearest-etf"], [0, 1, 2], placed(tmp_path))
    losses = [records(run)[-1]["train"]["loss"] for run in comparison.finished]
    heading, row = comparison_table(comparison).splitlines()
    assert heading.split()[:2] == ["head", "seeds"]
    assert row.split()[:2] == ["nearest-etf", "3"]
    assert f"{statistics.median(losses):.4g} ({min(losses):.4g} to {max(losses):.4g})" in row
    assert "test acc" not in heading


def test_several_processes_run_as_a_command(tmp_path, monkeypatch):
    commands = []

    def fails(command, env, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(room.subprocess, "run", fails)
    with pytest.warns(RuntimeWarning, match="status 3"):
        compare(SHORT, ["nearest-etf"], [0], placed(tmp_path, devices=2))
    from guided_collapse.experiments.cli.train import train_request

    (command,) = commands
    place = command.index("-m")
    assert command[0] == sys.executable
    assert command[place : place + 3] == ["-m", "guided_collapse.experiments.cli", "train"]
    request = train_request(None, command[place + 3 :])
    assert request.configuration == replace(SHORT, head="nearest-etf").resolved()
    assert request.placement == placed(tmp_path, devices=2)
    json.dumps(request.configuration.to_dict())


def test_what_is_finished_is_not_started_as_a_command(tmp_path, monkeypatch):
    done = compare(SHORT, ["cosine", "nearest-etf"], [0], placed(tmp_path))
    monkeypatch.setattr(room.subprocess, "run", None)
    assert compare(SHORT, ["cosine", "nearest-etf"], [0], placed(tmp_path), jobs=2) == done


def test_runs_beside_each_other_do_not_warn_of_fields_that_nobody_asked_for(tmp_path, capfd):
    shared = replace(SHORT, scale=7.0)
    comparison = compare(shared, ["linear", "cosine"], [0], placed(tmp_path), jobs=2)
    assert len(comparison.finished) == 2
    assert "warning" not in capfd.readouterr().err


@pytest.mark.parametrize("how", ["cut", "emptied", "missing", "no records", "text for a number"])
def test_a_run_whose_records_cannot_be_read_is_named_and_the_rest_is_shown(how, tmp_path):
    comparison = compare(SHORT, ["cosine", "nearest-etf"], [0, 1], placed(tmp_path))
    expected = comparison_table(replace(comparison, finished=comparison.finished[1:]))
    file = comparison.finished[0].path / "metrics.jsonl"
    content = file.read_text()
    if how == "missing":
        file.unlink()
    else:
        last = content.replace('"loss": ', '"loss": "x", "was": ')
        file.write_text({"cut": content[:-30], "emptied": "", "no records": "[1]\n" * 3, "text for a number": last}[how])
    with pytest.warns(RuntimeWarning, match=f"left out of the table: {file}"):
        assert comparison_table(comparison) == expected
