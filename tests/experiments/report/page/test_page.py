"""The page as text; what a browser makes of it is in test_page_in_browser.py."""

import json
import re
from html.parser import HTMLParser

import pytest

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment
from guided_collapse.experiments.report.page.page import page
from guided_collapse.experiments.report.styles import styles_of
from guided_collapse.experiments.report.tables.formats import all_tables
from tests.experiments.report.made_up import cost_row, lines, trace, write_cost, write_run

EVIL = "<script>alert(1)</script>"


def page_of(folder):
    records = read_records([folder])
    experiments = by_experiment(records.runs)
    tables = all_tables(experiments, records.costs, (50, 200))
    heads = [run.head for run in records.runs] + [row.head for cost in records.costs for row in cost.rows]
    return page(records, experiments, tables, styles_of(heads))


class Reader(HTMLParser):
    """Text outside of scripts and styles, and every element with its attributes."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.texts, self.open = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evil")
    write_run(
        folder,
        EVIL,
        f"head {EVIL}",
        folder="a",
        epochs=3,
        trace=True,
        protocol=EVIL,
        protocol_differences=[EVIL],
        configuration={EVIL: EVIL},
        versions={EVIL: EVIL},
        hardware={EVIL: EVIL},
        commit=EVIL,
        started=EVIL,
    )
    failed = write_run(folder, EVIL, "fixed-etf", folder="b", epochs=3, state="failed")
    (failed / "failed.json").write_text(json.dumps({"error": EVIL}))
    write_cost(folder, EVIL, [cost_row(EVIL, 1, 1, None, None, 1, EVIL)])
    return page_of(folder)


def test_names_are_text_wherever_they_appear(evil):
    reader = Reader(evil)
    assert [tag for tag, _ in reader.elements].count("script") == 3
    assert EVIL not in evil
    assert reader.text.count(EVIL) > 20
    assert reader.open == []


def test_the_page_asks_for_nothing(evil):
    reader = Reader(evil)
    for tag, attributes in reader.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data", "background"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    policy = next(found["content"] for tag, found in reader.elements if found.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert "http" not in policy


def test_everything_has_a_text_alternative(evil):
    reader = Reader(evil)
    ids = {attributes["id"] for _, attributes in reader.elements if "id" in attributes}
    plots = [attributes for _, attributes in reader.elements if attributes.get("class") == "plot"]
    assert len(plots) == 14
    for plot in plots:
        assert plot["aria-label"]
        assert plot["aria-describedby"] in ids
        assert plot["tabindex"] == "0"
    for tag, attributes in reader.elements:
        if tag in ("canvas", "table"):
            assert attributes["aria-label"]


def test_tables_on_the_page_equal_an_independent_computation(tmp_path):
    written = [lines("nearest-etf", seed, 60) for seed in range(2)]
    for seed in range(2):
        write_run(tmp_path, "cifar10-resnet18", "nearest-etf", seed, lines=written[seed])
    text = Reader(page_of(tmp_path)).text
    values = sorted(100 * run[49]["test"]["top1"] for run in written)
    assert f"{sum(values) / 2:.2f} ({values[0]:.2f} to {values[1]:.2f})" in text
    assert "81.76 (81.4 to 82.0)" in text
    losses = sorted(run[-1]["train"]["loss"] for run in written)
    assert f"{sum(losses) / 2:.4g} ({losses[0]:.4g} to {losses[1]:.4g})" in text


def test_the_summary_says_what_was_run_and_what_went_wrong(tmp_path):
    write_run(tmp_path, seed=0, epochs=20)
    write_run(tmp_path, seed=1, epochs=4, state="failed")
    write_run(tmp_path, seed=2, epochs=7, state="unfinished")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("[]")
    with pytest.warns(UserWarning, match="left out"):
        text = Reader(page_of(tmp_path)).text
    for said in (
        "toy, standard, seed 1 failed: the loss is not finite",
        "toy, standard, seed 2 is unfinished: 7 of 20 epochs",
        "foreign: config.json cannot be used",
        "Protocol: fair",
        "cpu Abacus, cores 2",
        "torch 2.13.0",
        "Commit: 0123abc",
    ):
        assert said in text


def test_the_results_come_first_and_the_machinery_last(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    for head in ("cosine", "fixed-etf"):
        for seed in range(2):
            write_run(tmp_path, "first", head, seed, epochs=3, trace=True, commit=commit)
    write_run(tmp_path, "second", epochs=3, num_test=0, commit=commit)
    reader = Reader(page_of(tmp_path))
    order = [
        "Results: median and range over seeds",  # of all experiments
        "Results: median and range over 2 seeds",
        "Differences between heads on the same seeds",
        "Top-1 accuracy, test (%)",
        "The collapse, epoch by epoch",
        "More curves",
        "The last measurement of each run",
        "How to read this",
        "finished",
        "Hardware and versions",
        "Commit: 0123456.",
    ]
    text = reader.text.partition("To the content")[2].partition("Heads")[2]
    places = [text.find(said) for said in order]
    assert -1 not in places
    assert places == sorted(places)
    assert commit[:8] not in text


def test_the_top_of_the_page_says_that_runs_are_missing(tmp_path):
    write_run(tmp_path, seed=0, epochs=2)
    assert "Not all runs" not in Reader(page_of(tmp_path)).text
    write_run(tmp_path, seed=1, epochs=2, state="failed")
    write_run(tmp_path, seed=2, epochs=2, state="unfinished")
    text = Reader(page_of(tmp_path)).text
    assert "Not all runs count in full: 1 failed, 1 unfinished." in text.partition("Results")[0]


def test_a_metric_that_is_missing_is_named(tmp_path):
    written = lines("cosine", 0, 3)
    for line in written:
        line["train"]["nc3"] = None
    write_run(tmp_path, lines=written)
    text = Reader(page_of(tmp_path)).text
    assert "Not measured in these runs: NC3, weights to class means." in text


def test_what_makes_sense_for_some_runs_only_has_a_chart_there_and_is_not_missed_elsewhere(tmp_path):
    written = lines("cosine", 0, 3)
    for line in written:
        line["test"]["top1_few"] = 0.25
    write_run(tmp_path, lines=written)
    text = Reader(page_of(tmp_path)).text
    assert text.count("Top-1 accuracy, test, classes with few samples (%)") > text.count("classes with many samples (%)")
    assert "Not measured in these runs" not in text


def test_runs_that_differ_are_told_apart(tmp_path):
    write_run(tmp_path, head="cosine", epochs=2, configuration={"gain": 1.0})
    write_run(tmp_path, head="fixed-etf", epochs=2, configuration={"gain": 2.0})
    assert "1.0 (standard)" in Reader(page_of(tmp_path)).text


def test_costs_alone_and_failures_alone_make_a_page(tmp_path):
    write_cost(tmp_path / "cost")
    assert "does not fit" in Reader(page_of(tmp_path)).text
    write_run(tmp_path, "toy", state="failed")
    assert "No run of this experiment has measurements to show." in Reader(page_of(tmp_path)).text


def test_nothing_that_is_filled_in_is_filled_again(tmp_path):
    write_run(tmp_path, "{{data}} {{script}}", epochs=2)
    found = page_of(tmp_path)
    assert "{{data}} {{script}}" in Reader(found).text
    assert len(re.findall(r"<script", found)) == 3


@pytest.mark.thorough
def test_four_heads_five_seeds_two_thousand_epochs_stay_small(tmp_path):
    for head in ("cosine", "fixed-etf", "nearest-etf", "nearest-etf-detached"):
        for seed in range(5):
            write_run(tmp_path, head=head, seed=seed, epochs=2000, trace=trace(range(1, 2001)) if seed == 0 else None)
    found = page_of(tmp_path)
    assert len(found) < 15_000_000
    assert "Every measured epoch is drawn." in Reader(found).text


def test_costs_are_bars_as_long_as_their_logarithms(tmp_path):
    rows = [cost_row("cosine", 1.0, 10.0, 1.0, 1.0, 1.0), cost_row(EVIL, 10000.0, None, None, None, None, "does not fit")]
    write_cost(tmp_path, EVIL, rows)
    source = page_of(tmp_path)
    reader = Reader(source)
    widths = [float(attrs["style"].split("%")[0].removeprefix("width:")) for _, attrs in reader.elements if "style" in attrs]
    assert widths == pytest.approx([4, 4 + 96 / 4, 100], abs=0.1)
    assert {"S/F", "S/B", f"{EVIL}/F", "1 ms", "10 ms", "10,000 ms", "S = Standard"} <= set(reader.texts)
    assert EVIL not in source
    assert ("a", {"href": "#cost"}) in reader.elements


def test_without_costs_nothing_is_said_of_them(tmp_path):
    write_run(tmp_path, epochs=2)
    assert "cost" not in {attrs.get("id") for _, attrs in Reader(page_of(tmp_path)).elements}


def test_counts_are_in_the_singular_or_the_plural(tmp_path):
    write_run(tmp_path, epochs=2)
    assert "<b>1</b><span>experiment</span></li><li><b>1</b><span>run</span>" in page_of(tmp_path)
    write_run(tmp_path, "other", epochs=2)
    assert "<b>2</b><span>experiments</span></li><li><b>2</b><span>runs</span>" in page_of(tmp_path)
