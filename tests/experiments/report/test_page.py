"""The page as text; test_page_in_browser.py tests it in a browser."""

import base64
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from pandas import DataFrame

from guided_collapse.experiments.records import QUANTITIES, TEST_TOP1
from guided_collapse.experiments.report import page_data as data
from guided_collapse.experiments.report.formats import Table
from guided_collapse.experiments.report.formulas import LETTERS, SIGNS, mathml
from guided_collapse.experiments.report.page import configurations, protocols, templates
from guided_collapse.experiments.report.page_data import animations_of, packed, panels_of
from guided_collapse.experiments.report.styles import styles_of
from tests.experiments.report.made_up import CONFIGURATION, experiments, lines, page_of, trace, write_run, write_runs

EVIL = "<script>alert(1)</script>"


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
    names = {"configuration": {EVIL: EVIL}, "versions": {EVIL: EVIL}, "hardware": {EVIL: EVIL}}
    names |= {"protocol": EVIL, "protocol_differences": (EVIL,), "commit": EVIL, "started": EVIL}
    write_run(folder, EVIL, f"head {EVIL}", folder="a", epochs=3, trace=True, **names)
    write_run(folder, EVIL, "fixed-etf", folder="b", epochs=3, state="failed", error=EVIL)
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
    elements = Reader(evil).elements
    ids = {attributes.get("id") for _, attributes in elements}
    plots = [attributes for _, attributes in elements if attributes.get("class") == "plot"]
    assert len(plots) == 15
    assert all(plot["aria-label"] and plot["aria-describedby"] in ids and plot["tabindex"] == "0" for plot in plots)
    assert all(attributes["aria-label"] for tag, attributes in elements if tag in ("canvas", "table"))


def test_the_page_says_what_was_run_and_what_went_wrong(tmp_path):
    write_run(tmp_path, seed=0, epochs=2)
    assert "Not all runs" not in Reader(page_of(tmp_path)).text
    write_run(tmp_path, seed=1, epochs=4, state="failed")
    write_run(tmp_path, seed=2, epochs=7, state="unfinished")
    text = Reader(page_of(tmp_path)).text
    assert "Some runs are not counted in full: 1 failed, 1 unfinished." in text.partition("Results")[0]
    assert "toy, cosine, seed 1 failed: the loss is not finite" in text
    assert "toy, cosine, seed 2 is unfinished: 7 of 20 epochs" in text
    assert "3 runs: cpu Abacus, cores 2, threads 1, devices cpu, processes 1." in text
    assert "torch 2.13.0, python 3.11.9. Commit: 0123abc" in text


def test_the_verdict_comes_first_and_only_what_is_shown_is_defined(tmp_path):
    for head in ("linear", "cosine"):
        write_run(tmp_path, "digits", head, epochs=2)
    text = Reader(page_of(tmp_path)).text
    assert text.index("Too few seeds to tell") < text.index("Results: median")
    assert "guided-collapse compare digits --batch-size 64 --epochs 2 --heads linear cosine --seeds 0 1 2 3 4" in text
    assert text.count(TEST_TOP1.meaning) == 2  # of training and of test samples
    assert "classes with many samples" not in text
    write_run(tmp_path, "other", epochs=2)
    several = Reader(page_of(tmp_path))
    assert "too few seeds in 1, nothing to compare in 1." in several.text
    assert "guided-collapse compare" not in several.text
    assert {"#experiment-0", "#experiment-1"} <= {found.get("href") for _, found in several.elements}


def test_formulas_are_mathml_that_may_break_at_spaces_and_words_stay_words():
    found = mathml("mean over samples of [argmax_j logits_j = label]")
    assert found.partition("<math>")[0].endswith(">mean over samples of ")
    assert "<msub><mi>argmax</mi><mrow><mi>j</mi></mrow></msub>" in found
    assert mathml("WW'/|WW'|_F - Pi/sqrt(m)").count("<math>") == 3
    assert "<mi>W</mi><msup><mi>W</mi><mo>&#8868;</mo></msup>" in mathml("WW'")
    assert "<msqrt><mi>m</mi></msqrt>" in mathml("Pi/sqrt(m)")
    assert "<mo>⟨</mo>" in mathml("<w_j, h>").replace(' stretchy="false"', "")
    assert "<mo>&gt;</mo>" in mathml("C > d+1").replace(' stretchy="false"', "")
    assert "<mo>≤</mo>" in mathml("C <= d+1").replace(' stretchy="false"', "")
    assert "<mi>j</mi><mo>≠</mo><mi>c</mi>" in mathml("max_{j != c}").replace(' stretchy="false"', "")


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.title)
def test_every_formula_is_well_formed_and_keeps_its_symbols(quantity):
    for text in (quantity.formula, quantity.at_collapse):
        root = ElementTree.fromstring(mathml(text).replace("&#8868;", "'"))
        shown = re.sub(r"\s", "", "".join(root.itertext()))
        plain = re.sub(r"[\s_{}]|sqrt\((?=m\))|(?<=/sqrt\(m)\)", "", text)
        for word, letter in {**LETTERS, **SIGNS}.items():
            plain = plain.replace(word.strip(), letter)
            shown = shown.replace(word.strip(), letter)
        assert shown == plain


def test_settings_and_protocols_say_in_what_runs_differ(tmp_path):
    write_run(tmp_path, head="cosine", configuration={**CONFIGURATION, "stem": None}, protocol_differences=("augmented",))
    other = {**CONFIGURATION, "epochs": 30}
    for seed in range(2):
        own = {"protocol_differences": ("augmented", "own batches"), "configuration": other}
        write_run(tmp_path, head="fixed-etf", seed=seed, epochs=30, **own)
    shared, differences = configurations(experiments(tmp_path)[0])
    assert differences == [("epochs", "20 (cosine); 30 (fixed-etf)")]
    assert ("scale", "5.0") in shared
    assert ("stem", "null") in shared
    fair = "fair, every head with the same stratified batches and, except for nn.Linear, the same centering"
    assert protocols(experiments(tmp_path)[0]) == [fair, "augmented", "fixed-etf: own batches"]
    write_run(tmp_path, head="nearest-etf", protocol="other")
    assert "other (nearest-etf)" in protocols(experiments(tmp_path)[0])


def test_failures_alone_make_a_page_and_nothing_that_is_filled_in_is_filled_again(tmp_path):
    write_run(tmp_path, "{{data}} {{script}}", state="failed", epochs=0)
    found = page_of(tmp_path)
    assert "Nothing to compare: no head has finished runs." in Reader(found).text
    assert "{{data}} {{script}}" in Reader(found).text
    assert len(re.findall(r"<script", found)) == 3


def test_panels_have_references_and_say_in_words_where_curves_end(tmp_path):
    written = [lines("cosine", seed, 4) for seed in range(2)]
    for seed in range(2):
        write_run(tmp_path, seed=seed, lines=written[seed], loss_lower_bound=0.25, num_classes=5)
    write_run(tmp_path, head="fixed-etf", state="failed", loss_lower_bound=0.25, num_classes=5)
    panels = panels_of(experiments(tmp_path)[0])
    found = {panel.title: panel.references for panel in panels}
    assert found["Mean cosine margin, train"] == found["Cosine margins at the end, train"] == [("best frame", 1.25)]
    assert found["Loss, test"] == []
    losses = [[run[place]["train"]["loss"] - 0.25 for run in written] for place in (0, -1)]
    first, last = (f"{np.mean(pair):.4g} ({min(pair):.4g} to {max(pair):.4g})" for pair in losses)
    assert panels[0].title == "Loss above its floor, train"
    assert panels[0].endpoints() == {"Cosine": f"{first} at epoch 1; {last} at epoch 4; 2 seeds"}
    assert "at 100 % of train samples, sorted; 2 seeds" in panels[-2].endpoints()["Cosine"]


def data_of(folder):
    experiment = experiments(folder)[0]
    return json.loads(data.page_data([panels_of(experiment)], [animations_of(experiment)], styles_of(experiment.heads)))


def test_the_data_of_curves_equal_an_independent_computation(tmp_path, monkeypatch):
    written = [lines("fixed-etf", seed, 6, every=2) for seed in range(5)]
    write_runs(tmp_path, {("fixed-etf", seed): written[seed] for seed in range(5)})
    write_run(tmp_path, head="nearest-etf", epochs=6, every=2, trace=True)
    found = data_of(tmp_path)
    panel = next(panel for panel in found["experiments"][0]["panels"] if panel["title"].startswith("Top-1 accuracy, test"))
    curve, single = panel["curves"]
    values = 100 * np.array([[line["test"]["top1"] for line in run if "test" in line] for run in written])
    assert found["x"][curve["x"]] == [2, 4, 6]
    for name, expected in (("median", np.median(values, axis=0)), ("low", values.min(axis=0)), ("high", values.max(axis=0))):
        np.testing.assert_allclose(curve[name], expected, rtol=1e-5)
    assert ("low" in single, single["x"], single["seeds"], curve["seeds"]) == (False, curve["x"], 1, 5)
    assert found["heads"][curve["head"]]["name"] == "Fixed ETF"
    (animation,) = found["experiments"][0]["animations"]
    assert (animation["head"], animation["epochs"]) == (1, [1, 5, 10, 20])
    write_run(tmp_path, head="nearest-etf", seed=1, epochs=4, every=2)
    assert data_of(tmp_path)["experiments"][0]["panels"][0]["curves"][1]["seeds"] == [2, 2, 1]
    monkeypatch.setattr(data, "MAX_POINTS", 2)
    assert [2, 6] in data_of(tmp_path)["x"]


def test_animations_show_the_first_seed_that_has_a_trace_and_numbers_of_it(tmp_path):
    arrays = trace(classes=3)
    write_run(tmp_path, head="fixed-etf", seed=0)
    write_run(tmp_path, head="fixed-etf", seed=1, trace=arrays)
    write_run(tmp_path, head="fixed-etf", seed=2, trace=True)
    write_run(tmp_path, head="cosine", seed=0, trace=True, state="failed")
    (animation,) = animations_of(experiments(tmp_path)[0])
    assert animation.run.seed == 1
    for moment in range(4):
        means, weights = arrays["means"][moment].astype(float), arrays["weights"][moment].astype(float)
        around = [np.linalg.norm(x - means[k]) for x, k in zip(arrays["samples"][moment], arrays["sample_labels"], strict=True)]
        apart = [np.linalg.norm(mean - means.mean(axis=0)) for mean in means]
        cosines = [m @ w / np.linalg.norm(m) / np.linalg.norm(w) for m, w in zip(means, weights, strict=True)]
        assert animation.spread[moment] == pytest.approx(np.mean(around) / np.mean(apart), rel=1e-6)
        assert animation.alignment[moment] == pytest.approx(np.mean(cosines), rel=1e-6)
    found = packed(animation.trace)
    numbers = np.frombuffer(base64.b64decode(found["points"]), dtype="<i2").reshape(4, 3 + 3 + 30, 3) * found["scale"]
    points = np.concatenate([arrays["weights"], arrays["means"], arrays["samples"]], axis=1)
    np.testing.assert_allclose(numbers, points, atol=1e-4 * np.abs(points).max())


def test_a_table_is_escaped_and_has_headings_and_medians_with_their_range():
    parts = templates().get_template("parts.html").module
    evil = f"{EVIL}\" onmouseover='x"
    found = parts.table(Table("t", evil, DataFrame([[evil, evil]], columns=[evil, "x"]), notes=[evil], stub=1))
    assert "<script" not in found
    assert found.count("&lt;script&gt;alert(1)&lt;/script&gt;&#34; onmouseover=&#39;x") == 7
    row = [["a", "paper", "5 (4 to 6) [epoch 3]", "7 (6 to 8), 2 of 3", "7"]]
    table = Table("t", "T", DataFrame(row, columns=["name", "source", "x", "y", "z"]), bold=frozenset({(0, 2)}))
    found = parts.table(table, without=1)
    assert '<tr class="paper"><th scope="row">paper</th>' in found
    assert '<td data-column="x"><strong><span>5 <small>(4 to 6)</small> <small>[epoch 3]</small></span></strong></td>' in found
    assert '<td data-column="y"><span>7 <small>(6 to 8)</small> <small>2 of 3</small></span></td>' in found
    assert '<td data-column="z"><span>7</span></td>' in found
    assert ">name<" not in found
