"""The committed records: readable, finished, and the source of every table on the pages, recomputed here without this package."""

import functools
import itertools
import json
import math
import re
import shlex
import statistics
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from matplotlib import pyplot
from PIL import Image

from benchmarks.cost import CostRequest
from guided_collapse.experiments.cli.commands import parsed
from guided_collapse.experiments.configuration import HEAD_FIELDS, Configuration
from guided_collapse.experiments.data.split import Split
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import preset
from guided_collapse.experiments.records import read_records
from guided_collapse.experiments.report.summaries import by_experiment
from results import build, tables, turned
from results.collect import collect
from tests.experiments.report.made_up import write_run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
RECORDS = RESULTS / "records"
# Megabytes that are quickly rebuilt: beside the figures and tables, and not under version control.
PAGE = RESULTS / "report" / "report.html"


@functools.cache
def stored(experiment):
    """The JSON objects in an archive by file, and of each `metrics.jsonl` the measured lines, without this package."""
    with zipfile.ZipFile(next(RECORDS.rglob(f"{experiment}.zip"))) as archive:
        texts = {name: archive.read(name).decode() for name in sorted(archive.namelist()) if not name.endswith(".npz")}
    lines = {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items() if name.endswith(".jsonl")}
    measured = {name: [line for line in found if line.get("train")] for name, found in lines.items()}
    return {name: json.loads(text) for name, text in texts.items() if name.endswith(".json")} | measured


def raw_measurements(experiment, head):
    """Returns what the runs of a head measured in eval mode: one list of lines for each seed."""
    return [lines for name, lines in stored(experiment).items() if re.fullmatch(rf"{head}/seed-\d+/metrics.jsonl", name)]


@functools.cache
def made_tables():
    return build.all_tables(RECORDS)


def cells_of(name, *, headings=False):
    """Returns the rows of a table, without its header, as lists of texts; with `headings`, the header and the rows."""
    first, _, *rows = [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in made_tables()[name]]
    return (first, rows) if headings else rows


@pytest.fixture(scope="module")
def records():
    return read_records([RECORDS])


@pytest.mark.thorough
def test_every_record_is_of_a_finished_run_and_small_and_holds_no_model(records):
    assert records.skipped == ()
    assert {run.state for run in records.runs} == {"finished"}
    files = [file for file in RESULTS.rglob("*") if file.is_file() and "__pycache__" not in file.parts and file != PAGE]
    assert sum(file.stat().st_size for file in files) < 20e6
    assert {file.suffix for file in files} <= {".json", ".zip", ".md", ".py", ".png"}
    assert f"/{PAGE.relative_to(ROOT)}" in (ROOT / ".gitignore").read_text().splitlines()


def commands_of(kind):
    """The commands on the page of results, in words, by what they made."""
    text = (RESULTS / "README.md").read_text()
    return {name: shlex.split(words) for name, words in re.findall(rf"^\| `([^`]+)` \| `{kind} (.*?)` \|$", text, re.MULTILINE)}


def without(configuration, idle):
    """Ignores fields whose values have no effect here: a preset may have changed since the record was made."""
    return {name: value for name, value in configuration.items() if name not in idle}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:head .* has no option")
def test_each_experiment_can_be_run_again_by_the_command_given(records, tmp_path, monkeypatch):
    commands = commands_of("guided-collapse")
    searches = {search.experiment: search for search in records.searches}
    assert set(commands) == {run.experiment for run in records.runs} | set(searches)
    assert {name for name, command in commands.items() if command[0] == "search"} == set(searches)
    monkeypatch.chdir(tmp_path)
    for name, search in searches.items():
        place = tmp_path / "runs" / f"{name}-search" / "search.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(stored(name)["search.json"]))
        plans = (search.plan, parsed(commands[name]).plan().plan)
        # Records may be older than a field and its default.
        complete = [plan | {"configuration": Configuration(**plan["configuration"]).to_dict()} for plan in plans]
        recorded, by_command = (plan | {"configuration": without(plan["configuration"], search.grid)} for plan in complete)
        assert recorded == by_command
    for experiment in by_experiment(records.runs):
        request = parsed(commands[experiment.name])
        assert {(run.head, run.seed) for run in experiment.runs} == set(itertools.product(request.heads, request.seeds))
        taken = getattr(request, "settings_of", None)
        source = searches.get(experiment.name) or (searches[taken.name.removesuffix("-search")] if taken else None)
        for run in experiment.runs:
            own = source.choice.get(run.head, {}) if source else {}
            expected = request.configuration.resolved().to_dict() | {"head": run.head, "seed": run.seed} | own
            idle = set(HEAD_FIELDS) - set(HEADS[run.head].takes)
            assert without(Configuration(**run.configuration).to_dict(), idle) == without(expected, idle), run.folder


def test_each_cost_can_be_measured_again_by_the_command_given():
    commands = commands_of("python -m benchmarks.cost")
    costs = {f"cost/{file.name}": json.loads(file.read_text()) for file in (RECORDS / "cost").iterdir()}
    assert set(commands) == set(costs)
    assert {cost["experiment"] for cost in costs.values()} == set(tables.NETWORKS)
    for name, cost in costs.items():
        request = tyro.cli(CostRequest, args=commands[name])
        assert (request.experiment, request.steps) == (cost["experiment"], cost["rows"][0]["steps"])
        assert cost["batch_size"] == (request.batch_size or preset(cost["experiment"]).resolved().batch_size)
        limit = re.search(r"not one step done after (\d+) s", str(cost["rows"]))
        assert limit is None or request.limit_seconds == float(limit[1])


def test_collecting_stores_what_a_report_needs(tmp_path):
    runs = tmp_path / "runs"
    for seed in range(2):
        write_run(runs, seed=seed, trace=True)
    write_run(runs, seed=2, state="unfinished")
    write_run(runs, "half", "cosine", seed=0)
    write_run(runs, "half", "fixed-etf", seed=0, state="unfinished")
    (runs / "toy" / "report").mkdir()  # as a comparison leaves it
    search = stored("omniglot-small")["search.json"] | {"experiment": "searched"}
    for name, changes in (("decided", {}), ("open", {"choice": {}, "decided": None})):
        write_run(runs / name / "chosen", "searched", seed=0)
        write_run(runs / name / "trials", "learning_rate=1", seed=1000)
        (runs / name / "search.json").write_text(json.dumps(search | changes))
    assert collect(runs, tmp_path / "records") == 3
    assert {file.name for file in (tmp_path / "records").iterdir()} == {"toy.zip", "searched.zip"}
    again = read_records([tmp_path / "records"])
    kept = [(run.experiment, run.seed, run.state) for run in again.runs]
    assert kept == [("searched", 0, "finished"), ("toy", 0, "finished"), ("toy", 1, "finished")]
    assert [run.trace is not None for run in again.runs] == [False, True, False]
    assert np.isnan(again.runs[1].epochs.seconds).all()
    assert len(again.runs[1].epochs.numbers) == 20
    assert [found.choice for found in again.searches] == [search["choice"]]


def test_turned_images_are_in_one_class_each(tmp_path):
    images = torch.randint(0, 256, (32, 3, 4, 4), dtype=torch.uint8)
    turned.write(Split(images, torch.arange(32) % 2), ("cat", "dog"), 2, tmp_path)
    files = sorted(tmp_path.rglob("*.png"))
    assert (len(files), len({file.parent for file in files})) == (32, 16)
    back = torch.frombuffer(bytearray(Image.open(tmp_path / "dog-90-negative" / "00005.png").tobytes()), dtype=torch.uint8)
    image = 255 - back.reshape(4, 4, 3).permute(2, 0, 1)
    assert torch.equal(image.rot90(-1, dims=(1, 2)), images[1::2][5])


@pytest.mark.thorough
def test_every_table_on_the_pages_is_as_the_records_have_it():
    for page in build.PAGES:
        text = page.read_text()
        assert set(re.findall(r"<!-- from the records: (.+?) -->", text)) == {found[1] for found in build.TABLE.finditer(text)}
        assert build.with_tables(text, made_tables()) == text, "run `make results`"


def first_epochs(runs, *, top1=0.0, loss=math.inf):
    """When each run is first measured with that accuracy and that loss."""
    good = [[line for line in run if line["train"]["top1"] >= top1 and line["train"]["loss"] <= loss] for run in runs]
    return [lines[0]["epoch"] if lines else math.inf for lines in good]


def described(values, form="{:.2f}"):
    if not values:
        return "-"
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return (middle if len({*values}) == 1 else f"{middle} ({low} to {high})").replace("inf", "never")


@pytest.mark.thorough
def test_the_table_of_training_follows_from_the_measurements():
    rows = iter(cells_of("training"))
    for experiment, name in tables.TITLES.items():
        assert {file.split("/")[0] for file in stored(experiment)} <= set(tables.HEADS)
        runs = [raw_measurements(experiment, head) for head in tables.HEADS]
        title, quantity, *cells = next(rows)
        seeds = len(raw_measurements(experiment, "cosine"))
        assert title == f"{name}, {seeds} {'seed' if seeds == 1 else 'seeds'}"
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
            assert cells == [described([100 * run[-1]["test"]["top1"] for run in of_head]) for of_head in runs]
    assert next(rows, None) is None


def number(text):
    """The first number of a cell, in milliseconds or megabytes."""
    value, unit = re.match(r"([\d.]+) (ms|s|MB|GB)", text).groups()
    return pytest.approx(float(value) * (1000 if unit in ("s", "GB") else 1), rel=6e-3)


@pytest.mark.thorough
def test_the_tables_of_steps_and_solves_follow_from_the_records():
    for name, (title, *cells, memory, papers) in zip(tables.NETWORKS, cells_of("step"), strict=True):
        cost = json.loads((RECORDS / "cost" / f"{name}.json").read_text())
        of = {row["head"]: row for row in cost["rows"]}
        assert title.split(", ")[1:] == [str(cost[key]) for key in ("feature_dim", "num_classes", "batch_size")]
        places = itertools.product(("", "head_"), ("cosine", "nearest-etf"))
        for text, (part, head) in zip((*cells[:2], *cells[3:]), places, strict=True):
            assert of[head][f"{part}forward_ms"] + of[head][f"{part}backward_ms"] == number(text)
        assert of["nearest-etf"]["peak_mb"] == number(memory)
        if name in tables.SHARED:
            (shares,) = (row[4:] for row in cells_of("what it costs") if row[0] == "Nearest ETF")
            row = of["nearest-etf"]
            share = (row["head_forward_ms"] + row["head_backward_ms"]) / (row["forward_ms"] + row["backward_ms"])
            assert shares[tables.SHARED.index(name)] == f"{100 * share:.1f} %"
        forward, backward = of["paper-route"]["forward_ms"], of["paper-route"]["backward_ms"]
        assert cells[2] == of["paper-route"]["note"] if forward is None else forward + (backward or 0) == number(cells[2])
        assert ("gradient does not fit" in cells[2]) == (forward is not None and backward is None)
        assert papers.endswith(" GB") == (name not in ("ufm-1000", "imagenet-resnet50"))
    solve = json.loads((RECORDS / "solve.json").read_text())
    for text, measured in zip((text for _, *texts in cells_of("solve") for text in texts), solve["solves"], strict=True):
        if "forward" not in measured:
            assert text == measured["refused"]
            continue
        assert 1e3 * measured.get("forward and backward", measured["forward"]) == number(text)
        assert "forward and backward" not in measured or measured["megabytes"] == number(text.partition(", ")[2])
    ratios = [float(text) for _, *texts in cells_of("ratio") for text in texts]
    assert ratios == pytest.approx([each["forward and backward"] / each["svd"] for each in solve["against one SVD"]], abs=6e-3)


@pytest.mark.thorough
def test_the_table_of_heads_steps_follows_from_the_record():
    record = json.loads((RECORDS / "steps-of-heads.json").read_text())
    rows = cells_of("steps of heads")
    names = [name for name in record[0]["seconds"] if not name.startswith("compiled")]
    assert len(rows) == len(names) == 6
    for name, (_, *texts) in zip(names, rows, strict=True):
        for text, of in zip(texts, record, strict=True):
            seconds = of["average seconds" if "every" in name else "seconds"]
            ratio, compiled = (float(found) for found in re.findall(r"[\d.]+", text))
            assert ratio == pytest.approx(seconds[name] / seconds["linear"], abs=6e-3)
            assert compiled == pytest.approx(seconds[f"compiled {name}"] / seconds["compiled linear"], abs=6e-3)
    for name, *ratios, _, _ in cells_of("what it costs"):
        title, _, every = name.rstrip("`").partition(", `every=")
        (head,) = (head for head, declared in HEADS.items() if declared.label == title)
        head, seconds = (f"{head} every {every}", "average seconds") if every else (head, "seconds")
        expected = [of[seconds][head] / of[seconds]["linear"] for of in record]
        assert [float(text) for text in ratios] == pytest.approx(expected, abs=0.051)
    for (_, ours, theirs, ratio), of in zip(
        cells_of("autograd"), json.loads((RECORDS / "solve.json").read_text())["against autograd"], strict=True
    ):
        assert [1e3 * value for value in of["seconds"].values()] == [number(ours), number(theirs)]
        assert of["seconds"]["factors"] / of["seconds"]["autograd through svd"] == pytest.approx(float(ratio), abs=6e-3)
        assert of["finite at collapse"] == {"factors": True, "autograd through svd": False}


@pytest.mark.thorough
def test_the_table_of_very_many_classes_follows_from_the_record_and_keeps_what_is_promised():
    record = json.loads((RECORDS / "many-classes.json").read_text())
    assert record["sizes"] == {"num_classes": 100_000, "feature_dim": 256, "batch_size": 512}
    memory, every = record["memory"], record["times"]["every"]
    windows = {kind: statistics.median(times) for kind, times in record["times"]["windows"].items()}
    for kind, (_, step, share, *floats) in zip(("nn.Linear", "nearest"), cells_of("a hundred thousand classes"), strict=True):
        assert 1e3 * windows[kind] / every == number(step)
        assert windows[kind] / windows["nn.Linear"] == pytest.approx(float(share), abs=6e-3)
        assert float(share) < 1.5
        added = memory[kind]["in steps"] - memory["logits alone"]["in steps"]
        assert [float(cell) for cell in floats] == pytest.approx([added, memory[kind]["state"]], abs=6e-3)
        assert added < 3


@pytest.mark.thorough
@pytest.mark.documentation
def test_the_report_is_what_the_records_give(tmp_path):
    build.build_report(RECORDS, tmp_path)
    committed = RESULTS / "report"
    names = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()} - {PAGE.relative_to(committed)}
    assert names == {file.relative_to(committed) for file in committed.rglob("*") if file.is_file() and file != PAGE}
    for name in names:
        if name.suffix != ".png":
            assert (tmp_path / name).read_bytes() == (committed / name).read_bytes(), f"{name}: run `make results`"
        else:
            rebuilt, there = (pyplot.imread(folder / name) for folder in (tmp_path, committed))
            assert rebuilt.shape == there.shape
            # A curve of a few hundred points that is elsewhere would be more.
            assert (abs(rebuilt - there).max(axis=2) > 0.2).mean() < 1e-4, f"{name}: run `make results`"
