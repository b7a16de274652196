"""The committed records: readable, finished, and the source of every figure that the pages give."""

import gzip
import json
import math
import re
import shlex
import statistics
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

from guided_collapse.experiments.requests import compare_request
from guided_collapse.report.records import read_records
from results import build, figures
from results.collect import collect, thinned
from tests.report.made_up import write_cost, write_run
from tests.test_docs import DOCS, ROOT

RESULTS = ROOT / "results"
RECORDS = RESULTS / "records"


@pytest.fixture(scope="module")
def records():
    return read_records([RECORDS])


def test_every_record_is_of_a_finished_run(records):
    assert records.skipped == ()
    assert {run.state for run in records.runs} == {"finished"}
    assert not [problem for run in records.runs for problem in run.problems]


def test_they_are_small_and_hold_no_model(records):
    files = [file for file in RESULTS.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(file.stat().st_size for file in files) < 20e6
    assert {file.suffix for file in files} <= {".json", ".gz", ".npz", ".md", ".py", ".html", ".png", ".csv"}
    assert len(records.runs) == len(list(RECORDS.glob("*/*/seed-*")))


def test_each_experiment_can_be_run_again_by_the_command_given(records):
    text = (RESULTS / "README.md").read_text()
    commands = {
        name: shlex.split(command)
        for name, command in re.findall(r"^\| `([\w-]+)` \| `(guided-collapse .*?)` \|$", text, flags=re.MULTILINE)
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


def test_thinned_margins_are_quantiles():
    margins = np.sort(np.random.default_rng(0).normal(size=4000))
    np.testing.assert_allclose(thinned(margins), np.quantile(margins, np.linspace(0, 1, 501)), rtol=1e-6)
    np.testing.assert_allclose(thinned(margins[:30]), margins[:30], rtol=1e-6)


def test_every_table_on_the_pages_is_as_the_records_have_it():
    for page in build.PAGES:
        text = page.read_text()
        assert set(re.findall(r"<!-- from the records: ([\w-]+) -->", text)) == {found[1] for found in build.BLOCK.finditer(text)}
        assert build.with_tables(text, RECORDS) == text, "run `make results`"


def raw_measurements(experiment, head):
    """What the runs of a head measured in eval mode, without this package: one list of lines for each seed."""
    files = sorted((RECORDS / experiment / head).glob("seed-*/metrics.jsonl.gz"))
    lines = [[json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()] for file in files]
    return [[line for line in run if line.get("train")] for run in lines]


def first_epochs(runs, level):
    return [next((line["epoch"] for line in run if 100 * line["train"]["top1"] >= level), math.inf) for run in runs]


def described(values, form):
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if len({*values}) == 1 else f"{middle} ({low} to {high})"


def test_the_table_of_training_follows_from_the_measurements():
    rows = iter(row.removeprefix("| ").removesuffix(" |").split(" | ") for row in figures.all_blocks(RECORDS)["training"][2:])
    for experiment, title in figures.TITLES.items():
        runs = {head: raw_measurements(experiment, head) for head in figures.HEADS}
        if not any(runs.values()):
            continue
        name, quantity, *cells = next(rows)
        assert name.startswith(title)
        level = int(quantity.split()[2])
        assert level == 50 or math.inf not in [epoch for of_head in runs.values() for epoch in first_epochs(of_head, level)]
        epochs = [described(first_epochs(of_head, level), "{:g}") if of_head else "-" for of_head in runs.values()]
        assert cells == [text.replace("inf", "never") for text in epochs]
        if not experiment.startswith("ufm"):
            _, _, *cells = next(rows)
            last = [[100 * run[-1]["test"]["top1"] for run in of_head] for of_head in runs.values()]
            assert cells == [described(values, "{:.2f}") if values else "-" for values in last]
    assert next(rows, None) is None


@pytest.mark.documentation
def test_the_report_is_what_the_records_give(tmp_path):
    build.build_report(RECORDS, tmp_path)
    committed = RESULTS / "report"
    names = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
    assert names == {file.relative_to(committed) for file in committed.rglob("*") if file.is_file()}
    for name in names:
        if name.suffix != ".png":
            assert (tmp_path / name).read_bytes() == (committed / name).read_bytes(), f"{name}: run `make results`"
        else:
            rebuilt, there = (pyplot.imread(folder / name) for folder in (tmp_path, committed))
            assert rebuilt.shape == there.shape
            assert abs(rebuilt - there).mean() < 1e-3, f"{name}: run `make results`"


MEASURED = re.compile(r"(?<![\w.-])\d[\d.,]* ?(?:ns|us|ms|s|seconds|minutes|hours|kB|MB|GB|TB|%|times|per cent|points)(?!\w)")


@pytest.mark.parametrize("page", [*DOCS, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_measured_number_stands_outside_the_tables_from_the_records(page):
    text = build.BLOCK.sub("", page.read_text())
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert MEASURED.findall(prose) == []
