"""The committed records: readable, finished, and as their page says."""

import re
import shlex
from pathlib import Path

import pytest

from guided_collapse.experiments.requests import compare_request
from guided_collapse.report.records import read_records
from tests.test_docs import ROOT

RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def records():
    return read_records([RESULTS / "records"])


def test_every_record_is_of_a_finished_run(records):
    assert records.skipped == ()
    assert {run.state for run in records.runs} == {"finished"}
    assert not [problem for run in records.runs for problem in run.problems]


def test_they_are_small_and_hold_no_model(records):
    files = [file for file in RESULTS.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in files) < 20e6
    assert {file.suffix for file in files} <= {".json", ".gz", ".npz", ".md", ".py", ".html", ".png", ".csv"}
    assert len(records.runs) == len(list((RESULTS / "records").glob("*/*/seed-*")))


def test_each_experiment_can_be_run_again_by_the_command_given(records):
    text = (RESULTS / "README.md").read_text()
    commands = {
        name: shlex.split(command) for name, command in re.findall(r"^\| `([\w-]+)` \| `(.*?)` \|$", text, flags=re.MULTILINE)
    }
    assert set(commands) == {run.experiment for run in records.runs}
    for run in records.runs:
        _, _, preset, *flags = commands[run.experiment]
        request = compare_request(preset, flags)
        assert run.head in request.heads
        assert run.seed in request.seeds
        expected = request.configuration.resolved().to_dict() | {"head": run.head, "seed": run.seed}
        assert dict(run.configuration) == expected, run.folder


def test_collecting_takes_what_a_report_needs(tmp_path):
    from results.collect import collect
    from tests.report.made_up import write_cost, write_run

    write_run(tmp_path / "runs", seed=0, trace=True)
    write_run(tmp_path / "runs", seed=1, trace=True)
    write_run(tmp_path / "runs", seed=2, state="unfinished")
    write_cost(tmp_path / "runs" / "toy")
    assert collect(tmp_path / "runs", tmp_path / "records") == 2
    found = {str(file.relative_to(tmp_path / "records")) for file in (tmp_path / "records").rglob("*") if file.is_file()}
    kept = {"config.json", "margins.npz", "metrics.jsonl.gz"}
    first, second = Path("toy/standard/seed-0"), Path("toy/standard/seed-1")
    assert found == {
        *(str(folder / name) for folder in (first, second) for name in kept),
        str(first / "trace.npz"),
        "toy/cost.json",
    }
    again = read_records([tmp_path / "records"])
    assert [run.state for run in again.runs] == ["finished"] * 2
    assert len(again.costs) == 1
