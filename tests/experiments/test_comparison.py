"""Comparisons: every head with every seed; finished runs are skipped, and a failed run does not stop the others."""

import json
import statistics
import subprocess
from dataclasses import replace

import pytest

from guided_collapse.experiments import comparison as module
from guided_collapse.experiments import loop
from guided_collapse.experiments.cli.commands import parsed
from guided_collapse.experiments.comparison import compare
from guided_collapse.experiments.errors import RequestError
from tests.experiments.runs import FREE, placed

SHORT = replace(FREE, epochs=3)


def test_nothing_to_compare_is_refused(tmp_path):
    for heads, seeds in (([], [0]), (["cosine"], [])):
        with pytest.raises(RequestError, match="heads and seeds must not be empty"):
            compare(SHORT, heads, seeds, placed(tmp_path))


def test_every_head_with_every_seed_and_finished_runs_are_skipped(tmp_path):
    done = loop.train(replace(SHORT, head="fixed-etf", seed=1), placed(tmp_path))
    before = (done.path / "metrics.jsonl").stat().st_mtime_ns
    comparison = compare(SHORT, ["cosine", "fixed-etf"], [0, 1, 1], placed(tmp_path))
    assert [run.path.relative_to(tmp_path).as_posix() for run in comparison.finished] == [
        *("ufm-10/cosine/seed-0", "ufm-10/fixed-etf/seed-0", "ufm-10/cosine/seed-1", "ufm-10/fixed-etf/seed-1")
    ]
    assert comparison.failed == ()
    assert (done.path / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    train = loop.train

    def fails_for_fixed(configuration, placement, **_):
        if configuration.head == "fixed-etf":
            raise RuntimeError("out of luck")
        return train(configuration, placement)

    monkeypatch.setattr(loop, "train", fails_for_fixed)
    with pytest.warns(RuntimeWarning, match="out of luck"):
        comparison = compare(SHORT, ["fixed-etf", "nearest-etf"], [0], placed(tmp_path))
    assert [run.path.parent.name for run in comparison.finished] == ["nearest-etf"]
    ((run, reason),) = comparison.failed
    assert (run.path.parent.name, reason) == ("fixed-etf", "RuntimeError: out of luck")


def test_it_prints_medians_and_the_verdict_in_at_most_100_columns(tmp_path):
    comparison = compare(SHORT, ["fixed-etf", "nearest-etf-detached"], [0, 1, 2], placed(tmp_path))
    last = [json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])["train"] for run in comparison.finished]
    printed = str(comparison).splitlines()
    assert max(map(len, printed)) <= 100
    _, heading, fixed, nearest, *_ = printed
    assert heading.split()[0] == "head"
    assert fixed.startswith("Fixed ETF  ")
    row = nearest.removeprefix("Nearest ETF, detached").split()
    assert row[0] == "never"
    for name, form in (("nc1", ".2g"), ("mean_cosine_margin", ".3g")):
        assert format(statistics.median(record[name] for record in last[1::2]), form) in row
    assert "Draw: in epochs to 1.01 times the least loss, Nearest ETF, detached and Fixed ETF" in " ".join(printed)


def test_several_processes_run_as_a_command(tmp_path, monkeypatch):
    commands = []

    def fails(command, env, check):
        commands.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(module.subprocess, "run", fails)
    with pytest.warns(RuntimeWarning, match="status 3"):
        compare(SHORT, ["nearest-etf"], [0], placed(tmp_path, devices=2))
    (command,) = commands
    place = command.index("-m")
    request = parsed(command[place + 2 :])
    assert request.configuration == replace(SHORT, head="nearest-etf").resolved()
    assert request.placement == placed(tmp_path, devices=2)


def test_several_runs_at_a_time_share_the_machine(tmp_path, monkeypatch):
    environments = []

    def record(command, env, check):
        environments.append((env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(module.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(module.subprocess, "run", record)
    compare(SHORT, ["cosine", "nearest-etf"], [0, 1], placed(tmp_path), jobs=2)
    assert len(environments) == 4
    assert set(environments) <= {("4", "4"), ("5", "4")}


@pytest.mark.slow
def test_runs_beside_each_other_do_not_warn_about_fields_that_nobody_set(tmp_path, capfd):
    shared = replace(SHORT, scale=7.0)
    comparison = compare(shared, ["linear", "cosine"], [0], placed(tmp_path), jobs=2)
    assert len(comparison.finished) == 2
    assert "warning" not in capfd.readouterr().err


def test_a_run_whose_records_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path):
    comparison = compare(SHORT, ["cosine", "nearest-etf"], [0, 1], placed(tmp_path))
    expected = str(replace(comparison, finished=comparison.finished[1:]))
    file = comparison.finished[0].path / "metrics.jsonl"
    file.write_text(file.read_text()[:-30])
    with pytest.warns(RuntimeWarning, match=f"left out of the table: {file.parent}: {file.name}"):
        assert str(comparison) == expected
