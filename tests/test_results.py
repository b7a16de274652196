"""The committed records: readable, finished, and the source of every figure that the pages give."""

import functools
import gzip
import itertools
import json
import math
import re
import shlex
import statistics
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

from guided_collapse.experiments.cli.compare import compare_request
from guided_collapse.experiments.cli.cost import cost_request
from guided_collapse.experiments.cli.requests import split_words
from guided_collapse.experiments.cli.search import plan_of, search_request
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.configuration import HEAD_FIELDS
from results import build, tables
from results.collect import collect, thinned
from tests.experiments.report.made_up import write_cost, write_run
from tests.experiments.training.settings.test_configuration import YOUNGER
from tests.test_docs import DOCS, ROOT

pytestmark = pytest.mark.thorough

RESULTS = ROOT / "results"
RECORDS = RESULTS / "records"
# Megabytes that are quickly rebuilt: beside the figures and tables, and not under version control.
PAGE = RESULTS / "report" / "report.html"


@pytest.fixture(scope="module")
def records():
    return read_records([RECORDS])


def test_every_record_is_of_a_finished_run(records):
    assert records.skipped == ()
    assert {run.state for run in records.runs} == {"finished"}
    assert not [problem for run in records.runs for problem in run.problems]


def test_they_are_small_and_hold_no_model(records):
    files = [file for file in RESULTS.rglob("*") if file.is_file() and "__pycache__" not in file.parts and file != PAGE]
    assert sum(file.stat().st_size for file in files) < 20e6
    assert {file.suffix for file in files} <= {".json", ".gz", ".npz", ".md", ".py", ".png"}
    assert len(records.runs) == len(list(RECORDS.rglob("seed-*")))


def test_each_experiment_can_be_run_again_by_the_command_given(records):
    text = (RESULTS / "README.md").read_text()
    commands = {
        name: shlex.split(command)
        for name, command in re.findall(r"^\| `([\w-]+)` \| `(guided-collapse .*?)` \|$", text, flags=re.MULTILINE)
    }
    searches = {search.experiment: search for search in records.searches}
    assert set(commands) == {run.experiment for run in records.runs} | set(searches)
    assert {name for name, command in commands.items() if command[1] == "search"} == set(searches)
    for name, search in searches.items():
        plans = (search.plan, plan_of(search_request(*split_words(commands[name][2:]))).plan)
        recorded, by_command = (plan | {"configuration": without(plan["configuration"], search.grid)} for plan in plans)
        assert recorded == by_command
    for experiment in by_experiment(records.runs):
        _, kind, *words = commands[experiment.name]
        request = (search_request if kind == "search" else compare_request)(*split_words(words))
        assert {(run.head, run.seed) for run in experiment.runs} == set(itertools.product(request.heads, request.seeds))
        own = {}
        if kind == "search":
            own = searches[experiment.name].choice
        elif request.settings_of is not None:
            own = searches[request.settings_of.name.removesuffix("-search")].choice
        for run in experiment.runs:
            expected = request.configuration.resolved().to_dict() | {"head": run.head, "seed": run.seed} | own.get(run.head, {})
            idle = set(HEAD_FIELDS) - set(HEADS[run.head].takes)
            assert without({**YOUNGER, **run.configuration}, idle) == without(expected, idle), run.folder


def without(configuration, idle):
    """But for fields whose values here have no effect: a preset may have others than when the record was made."""
    return {name: value for name, value in configuration.items() if name not in idle}


def test_each_cost_can_be_measured_again_by_the_command_given(records):
    text = (RESULTS / "README.md").read_text()
    commands = dict(re.findall(r"^\| `([\w-]+)/cost.json` \| `guided-collapse cost (.*?)` \|$", text, flags=re.MULTILINE))
    assert set(commands) == {cost.experiment for cost in records.costs} == set(tables.NETWORKS)
    for cost in records.costs:
        preset, *flags = shlex.split(commands[cost.experiment])
        configuration, request = cost_request(preset, flags)
        assert cost.batch_size == (request.batch_size or configuration.resolved().batch_size)
        assert cost.rows[0].steps == request.steps
        limit = re.search(r"not one step done after (\d+) s", str(cost.rows))
        assert limit is None or flags[-2:] == ["--limit-seconds", limit[1]]


def test_collecting_takes_what_a_report_needs(tmp_path):
    write_run(tmp_path / "runs", seed=0, trace=True)
    write_run(tmp_path / "runs", seed=1, trace=True)
    write_run(tmp_path / "runs", seed=2, state="unfinished")
    write_run(tmp_path / "runs", "half", "cosine", seed=0)
    write_run(tmp_path / "runs", "half", "fixed-etf", seed=0, state="unfinished")
    write_cost(tmp_path / "runs" / "toy")
    (tmp_path / "runs" / "toy" / "report").mkdir()  # as a comparison leaves it
    (tmp_path / "runs" / "notes.txt").touch()
    assert collect(tmp_path / "runs", tmp_path / "records") == 2
    found = {str(file.relative_to(tmp_path / "records")) for file in (tmp_path / "records").rglob("*") if file.is_file()}
    kept = {"config.json", "margins.npz", "metrics.jsonl.gz"}
    first, second = Path("toy/cosine/seed-0"), Path("toy/cosine/seed-1")
    assert found == {
        *(str(folder / name) for folder in (first, second) for name in kept),
        str(first / "trace.npz"),
        "toy/cost.json",
    }
    again = read_records([tmp_path / "records"])
    assert [run.state for run in again.runs] == ["finished"] * 2
    assert np.isnan(again.runs[0].epochs.seconds).all()
    assert len(again.runs[0].epochs.numbers)
    assert len(again.costs) == 1


def test_collecting_takes_searches_that_have_decided_and_their_fresh_seeds(tmp_path):
    plan = json.loads(next(RECORDS.rglob("search.json")).read_text())
    for name, changes in (("decided", {}), ("open", {"choice": {}, "decided": None})):
        write_run(tmp_path / "runs" / name / "chosen", "toy", seed=0)
        write_run(tmp_path / "runs" / name / "trials", "learning_rate=1", seed=1000)
        (tmp_path / "runs" / name / "search.json").write_text(json.dumps(plan | changes))
    assert collect(tmp_path / "runs", tmp_path / "records") == 1
    found = {str(file.parent.relative_to(tmp_path / "records")) for file in (tmp_path / "records").rglob("*") if file.is_file()}
    assert found == {"decided", "decided/chosen/toy/cosine/seed-0"}


def test_thinned_margins_are_quantiles():
    margins = np.sort(np.random.default_rng(0).normal(size=4000))
    np.testing.assert_allclose(thinned(margins), np.quantile(margins, np.linspace(0, 1, 501)), rtol=1e-6)
    np.testing.assert_allclose(thinned(margins[:30]), margins[:30], rtol=1e-6)


def test_every_table_on_the_pages_is_as_the_records_have_it():
    for page in build.PAGES:
        text = page.read_text()
        assert set(re.findall(r"<!-- from the records: (.+?) -->", text)) == {found[1] for found in build.TABLE.finditer(text)}
        assert build.with_tables(text, made_tables()) == text, "run `make results`"


@functools.cache
def made_tables():
    return tables.all_tables(RECORDS)


def cells_of(name, *, headings=False):
    """The rows of a table, without its head, as lists of texts; with `headings` these, and the rows."""
    first, _, *rows = [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in made_tables()[name]]
    return (first, rows) if headings else rows


def raw_measurements(experiment, head):
    """What the runs of a head measured in eval mode, without this package: one list of lines for each seed."""
    files = sorted((RECORDS / experiment / head).glob("seed-*/metrics.jsonl.gz"))
    lines = [[json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()] for file in files]
    return [[line for line in run if line.get("train")] for run in lines]


def first_epochs(runs, *, top1=0.0, loss=math.inf):
    """When each run is first measured with that accuracy and that loss."""
    good = [[line for line in run if line["train"]["top1"] >= top1 and line["train"]["loss"] <= loss] for run in runs]
    return [lines[0]["epoch"] if lines else math.inf for lines in good]


def described(values, form):
    if not values:
        return "-"
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return (middle if len({*values}) == 1 else f"{middle} ({low} to {high})").replace("inf", "never")


def test_the_table_of_training_follows_from_the_measurements():
    rows, shorts = iter(cells_of("training")), []
    names = {folder.parent.parent.name for folder in RECORDS.glob("*/*/seed-*")} & set(tables.TITLES)
    assert names == set(tables.TITLES)
    for experiment in (name for name in tables.TITLES if name in names):
        assert {folder.parent.name for folder in (RECORDS / experiment).glob("*/seed-*")} <= set(tables.HEADS)
        runs = [raw_measurements(experiment, head) for head in tables.HEADS]
        title, quantity, *cells = next(rows)
        seeds = len(raw_measurements(experiment, "cosine"))
        assert title == f"{tables.TITLES[experiment]}, {seeds} {'seed' if seeds == 1 else 'seeds'}"
        best = min(max(100 * line["train"]["top1"] for line in run) for of_head in runs for run in of_head)
        level = max((level for level in (50, 80, 90, 95, 99, 100) if level <= best), default=50)
        assert quantity == f"epochs to {level} % train accuracy"
        assert cells == [described(first_epochs(of_head, top1=level / 100), "{:g}") for of_head in runs]
        _, quantity, *cells = next(rows)
        if experiment.startswith("ufm"):
            classes = int(experiment.removeprefix("ufm-"))
            # Features of norm 5 on their own unit weight, and -1/(C-1) of it on each other.
            bound = math.log1p((classes - 1) * math.exp(-5 * classes / (classes - 1)))
            assert quantity == "epochs to 1.01 times the least loss"
            assert cells == [described(first_epochs(of_head, loss=1.01 * bound), "{:g}") for of_head in runs]
        else:
            assert quantity.startswith("test accuracy")
            assert cells == [described([100 * run[-1]["test"]["top1"] for run in of_head], "{:.2f}") for of_head in runs]
        shorts.append([title, quantity, *cells[:4], cells[5]])
    assert next(rows, None) is None
    assert cells_of("training in short") == shorts


def test_the_table_of_pairs_follows_from_the_measurements():
    names = [name for name in tables.TITLES if not name.startswith("ufm")]
    experiments = [name for name in names if len(raw_measurements(name, "cosine")) > 1]
    last = {
        (experiment, head): [run[-1]["test"]["top1"] for run in raw_measurements(experiment, head)]
        for experiment in experiments
        for head in tables.HEADS
    }
    heads = [head for head in tables.HEADS if any(last[experiment, head] for experiment in experiments)]
    rows = {(experiment, head): cells for experiment, head, *cells in cells_of("pairs")}
    for experiment in experiments:
        for place, head in enumerate(heads):
            before = {other: last[experiment, other] for other in heads[:place] if last[experiment, other]}
            cells = dict(zip(heads[:-1], rows.pop((experiment, head), []), strict=False))
            assert {other for other, cell in cells.items() if cell != "-"} == (set(before) if last[experiment, head] else set())
            for other, theirs in before.items() if cells else ():
                gains = [100 * (mine - their) for mine, their in zip(last[experiment, head], theirs, strict=True)]
                low, middle, high = (f"{gain:+.2f}" for gain in (min(gains), statistics.median(gains), max(gains)))
                assert cells[other] == f"{middle} ({low} to {high}), {sum(gain > 0 for gain in gains)} of {len(gains)}"
    assert not rows


def test_what_the_page_says_of_ten_classes_holds():
    ends = {
        (experiment, head): [run[-1]["test"]["top1"] for run in raw_measurements(experiment, head)]
        for experiment in ("fashion-mnist", "fashion-mnist-sgd", "cifar10-small")
        for head in ("linear", "cosine", "fixed-etf", "nearest-etf", "nearest-etf-lagged")
    }
    medians = {key: statistics.median(values) for key, values in ends.items() if values}
    for experiment, head in medians:
        assert head == "nearest-etf-lagged" or medians[experiment, head] < medians[experiment, "nearest-etf-lagged"]
    linear = ends["fashion-mnist-sgd", "linear"]
    for head in ("fixed-etf", "nearest-etf-lagged"):
        assert all(mine > theirs for mine, theirs in zip(ends["fashion-mnist-sgd", head], linear, strict=True))
    by_sgd = [median for (experiment, _), median in medians.items() if experiment == "fashion-mnist-sgd"]
    assert min(by_sgd) == statistics.median(linear) > max(by_sgd) - 0.005
    for learned in ("linear", "cosine"):
        for head in ("fixed-etf", "nearest-etf", "nearest-etf-lagged"):
            theirs = ends["cifar10-small", learned]
            assert medians["cifar10-small", head] > statistics.median(theirs)
            assert sum(own > their for own, their in zip(ends["cifar10-small", head], theirs, strict=True)) >= 2


def number(text):
    """The first number of a cell, in milliseconds or megabytes."""
    value, unit = re.match(r"([\d.]+) (ms|s|MB|GB)", text).groups()
    return float(value) * (1000 if unit in ("s", "GB") else 1)


def test_the_table_of_steps_follows_from_the_records():
    rows = cells_of("step")
    assert len(rows) == len(list(RECORDS.glob("*/cost.json")))
    for (name, _), (title, standard, implicit, route, standard_head, implicit_head, memory, papers) in zip(
        tables.NETWORKS.items(), rows, strict=True
    ):
        cost = json.loads((RECORDS / name / "cost.json").read_text())
        of = {row["head"]: row for row in cost["rows"]}
        assert title.split(", ")[1:] == [str(cost[key]) for key in ("feature_dim", "num_classes", "batch_size")]
        for text, head in ((standard, "cosine"), (implicit, "nearest-etf")):
            assert number(text) == pytest.approx(of[head]["forward_ms"] + of[head]["backward_ms"], rel=6e-3)
        for text, head in ((standard_head, "cosine"), (implicit_head, "nearest-etf")):
            assert number(text) == pytest.approx(of[head]["head_forward_ms"] + of[head]["head_backward_ms"], rel=6e-3)
        assert number(memory) == pytest.approx(of["nearest-etf"]["peak_mb"], rel=6e-3)
        papers_own = of["paper-route"]
        if papers_own["forward_ms"] is None:
            assert route == papers_own["note"]
        else:
            assert number(route) == pytest.approx(papers_own["forward_ms"] + (papers_own["backward_ms"] or 0), rel=6e-3)
            assert ("does not fit" in route) == (papers_own["backward_ms"] is None)
        assert papers.endswith(" GB") == (name not in ("ufm-1000", "imagenet-resnet50"))


def test_the_tables_of_solves_follow_from_the_record():
    solve = json.loads((RECORDS / "solve.json").read_text())
    rows = [text for _, *texts in cells_of("solve") for text in texts]
    for text, measured in zip(rows, solve["solves"], strict=True):
        if "forward" not in measured:
            assert text == measured["refused"]
            continue
        assert number(text) == pytest.approx(1e3 * measured.get("forward and backward", measured["forward"]), rel=6e-3)
        if "forward and backward" in measured:
            assert number(text.partition(", ")[2]) == pytest.approx(measured["megabytes"], rel=6e-3)
    ratios = [float(text) for _, *texts in cells_of("ratio") for text in texts]
    expected = [measured["forward and backward"] / measured["svd"] for measured in solve["against one SVD"]]
    assert ratios == pytest.approx(expected, abs=6e-3)


def test_the_table_of_very_many_classes_follows_from_the_record_and_keeps_what_is_promised():
    record = json.loads((RECORDS / "many-classes.json").read_text())
    assert record["sizes"] == {"num_classes": 100_000, "feature_dim": 256, "batch_size": 512}
    windows, memory = record["times"]["windows"], record["memory"]
    linear, nearest = cells_of("a hundred thousand classes")
    assert float(nearest[2]) == pytest.approx(
        statistics.median(windows["nearest"]) / statistics.median(windows["nn.Linear"]), abs=6e-3
    )
    assert float(nearest[2]) < 1.5
    for kind, cells in (("nn.Linear", linear), ("nearest", nearest)):
        assert number(cells[1]) == pytest.approx(1e3 * statistics.median(windows[kind]) / record["times"]["every"], rel=6e-3)
        added = memory[kind]["in steps"] - memory["logits alone"]["in steps"]
        assert [float(cell) for cell in cells[3:]] == pytest.approx([added, memory[kind]["state"]], abs=6e-3)
    assert float(nearest[3]) < 3


def test_the_page_is_rebuilt_and_not_committed():
    assert f"/{PAGE.relative_to(ROOT)}" in (ROOT / ".gitignore").read_text().splitlines()
    for page in (ROOT / "README.md", RESULTS / "README.md"):
        assert f"]({PAGE.relative_to(page.parent)})" not in page.read_text(), "a link to a file that is not there"


@pytest.mark.documentation
def test_the_report_is_what_the_records_give(tmp_path):
    build.build_report(RECORDS, tmp_path)
    committed = RESULTS / "report"
    names = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
    assert PAGE.relative_to(committed) in names
    names.remove(PAGE.relative_to(committed))
    assert names == {file.relative_to(committed) for file in committed.rglob("*") if file.is_file() and file != PAGE}
    for name in names:
        if name.suffix != ".png":
            assert (tmp_path / name).read_bytes() == (committed / name).read_bytes(), f"{name}: run `make results`"
        else:
            rebuilt, there = (pyplot.imread(folder / name) for folder in (tmp_path, committed))
            assert rebuilt.shape == there.shape
            # A curve of a few hundred points that is elsewhere would be more.
            assert (abs(rebuilt - there).max(axis=2) > 0.2).mean() < 1e-4, f"{name}: run `make results`"


MEASURED = re.compile(r"(?<![\w.-])\d[\d.,]* ?(?:ns|us|ms|s|seconds|minutes|hours|kB|MB|GB|TB|%|times|per cent|points)(?!\w)")


@pytest.mark.parametrize("page", [*DOCS, ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_no_measured_number_stands_outside_the_tables_from_the_records(page):
    text = build.TABLE.sub("", page.read_text())
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    assert MEASURED.findall(prose) == []
