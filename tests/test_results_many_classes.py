"""The tables of many classes, recomputed from the measurements by independent code."""

import functools
import json
import math
import statistics

import pytest
from scipy.stats import rankdata

from guided_collapse.experiments.heads import HEADS
from results.tables import DATA, STEPPED, VARIED
from tests.test_results import RECORDS, cells_of, described, stored

pytestmark = pytest.mark.thorough

LABELS = {head: declared.label for head, declared in HEADS.items()}
AXIS = ("linear", "cosine", "fixed-etf", "nearest-etf-lagged")


@functools.cache
def searches():
    found = {file.stem: stored(file.stem) for file in sorted(RECORDS.glob("*.zip"))}
    return {name: files["search.json"] for name, files in found.items() if "search.json" in files}


@functools.cache
def of_many_classes():
    """The runs on these data: experiment, head, and a list of facts and measurements by seed."""
    found = {}
    for archive in sorted(RECORDS.glob("*.zip")):
        files = stored(archive.stem)
        for name, facts in files.items():
            if name.endswith("config.json") and facts["configuration"]["data"] in DATA:
                measured = [line for line in files[name.replace("config.json", "metrics.jsonl")] if line.get("test")]
                found.setdefault(facts["experiment"], {}).setdefault(facts["head"], []).append((facts, measured))
    return found


def first_facts(heads):
    return next(iter(heads.values()))[0][0]


def images(facts):
    """Images per class that the configuration requests, or else all of them; None in a long tail."""
    if facts["configuration"]["long_tail_ratio"] == 50:
        return None
    return (
        facts["configuration"]["images_per_class"] or {"omniglot-small1": 16, "cifar10-turned": 50}[facts["configuration"]["data"]]
    )


def is_tight(facts):
    return facts["num_classes"] > facts["feature_dim"] + 1


def title(facts):
    data, epochs = DATA[facts["configuration"]["data"]], facts["configuration"]["epochs"]
    amount = f" of {images(facts)} images" if images(facts) else ", long-tailed 50 to 1"
    return f"{data}, {facts['num_classes']} classes{amount}, {facts['feature_dim']} features, {epochs} epochs"


def names(facts):
    """Names of the heads in a row of a table."""
    return LABELS | ({"fixed-etf": "Fixed frame", "nearest-etf": "Nearest frame, lagged"} if is_tight(facts) else {})


def ends(runs, part="test", name="top1"):
    """Returns the final values of a metric in percent, by seed."""
    return [100 * lines[-1][part][name] for _, lines in runs]


def test_accuracies_follow_from_the_measurements():
    expected, ended = {False: [], True: []}, {}
    for name, heads in of_many_classes().items():
        facts = first_facts(heads)
        if not images(facts) or not (is_tight(facts) or name in searches()):
            continue
        last = facts["configuration"]["epochs"]
        if is_tight(facts):
            ended[title(facts)] = {names(facts)[head]: described(ends(runs)) for head, runs in heads.items()}
        first = f"{title(facts)}, 3 seeds"
        for part, epoch in (("test", 3), ("test", 5), ("test", last), ("train", last)):
            there = {
                head: [line[part] for _, lines in runs for line in lines if line["epoch"] == epoch] for head, runs in heads.items()
            }
            values = {names(facts)[head]: described([100 * found["top1"] for found in lines]) for head, lines in there.items()}
            expected[is_tight(facts)].append((first, f"{part} accuracy after {epoch} epochs, %", values))
            first = ""
        aims = {facts["seed"]: lines[-1]["test"]["top1"] for facts, lines in heads["linear"]}
        soon = {}
        for head, runs in heads.items():
            when = [[line["epoch"] for line in lines if line["test"]["top1"] >= aims[own["seed"]]] for own, lines in runs]
            soon[names(facts)[head]] = described([min(epochs, default=math.inf) for epochs in when], "{:g}")
        expected[is_tight(facts)].append(("", "epochs to the test accuracy that nn.Linear ends with", soon))
    for tight, table in ((False, "many classes"), (True, "more classes than dimensions")):
        headings, rows = cells_of(table, headings=True)
        found = [(*row[:2], {head: cell for head, cell in zip(headings[2:], row[2:], strict=True) if cell != "-"}) for row in rows]
        assert len(found) == len(expected[tight])
        assert all(row in expected[tight] for row in found)
    (_, *labels), rows = cells_of("more classes than dimensions at the end", headings=True)
    assert {row[0]: dict(zip(labels, row[1:], strict=True)) for row in rows} == ended


def test_accuracies_by_the_number_of_images_follow_from_the_measurements():
    expected = []
    for heads in of_many_classes().values():
        facts = first_facts(heads)
        if images(facts) and not is_tight(facts):
            test, train = ([described(ends(heads[head], part)) for head in AXIS] for part in ("test", "train"))
            data, epochs = facts["configuration"]["data"], facts["configuration"]["epochs"]
            name = f"{DATA[data]}, {images(facts)} images of each class, {epochs} epochs"
            expected.append((data, images(facts), [[name, "test accuracy, %", *test], ["", "train accuracy, %", *train]]))
    headings, rows = cells_of("amounts of images", headings=True)
    assert headings[2:] == [LABELS[head] for head in AXIS]
    assert rows == [row for *_, both in sorted(expected) for row in both]


def test_the_short_verdict_follows_from_the_measurements():
    expected, by_data = {}, dict.fromkeys(DATA.values(), 0)
    for heads in of_many_classes().values():
        facts = first_facts(heads)
        if is_tight(facts):
            continue
        linear = {own["seed"]: 100 * lines[-1]["test"]["top1"] for own, lines in heads["linear"]}
        cells = []
        for head in ("cosine", "fixed-etf", "nearest-etf", "nearest-etf-lagged"):
            ahead = [100 * lines[-1]["test"]["top1"] - linear[own["seed"]] for own, lines in heads.get(head, [])]
            won = sum(each > 0 for each in ahead)
            cells.append(f"{statistics.median(ahead):+.1f} ({won}/{len(ahead)})" if ahead else "-")
        data = DATA[facts["configuration"]["data"]]
        amount = f" of {images(facts)} images" if images(facts) else ", long tail"
        expected[f"{data}, {facts['num_classes']} classes{amount}"] = [f"{statistics.median(linear.values()):.1f}", *cells]
        by_data[data] += 1
    rows = {first: cells for first, *cells in cells_of("does it beat")}
    assert by_data == {"Omniglot": 3, "Tiny ImageNet": 5, "CIFAR-10, rotated": 0}
    assert {name: cells for name, cells in rows.items() if "10 classes" not in name} == expected
    assert len(rows) == len(expected) + 2


def test_accuracies_under_long_tails_follow_from_the_measurements():
    (heads,) = (heads for heads in of_many_classes().values() if not images(first_facts(heads)))
    headings, rows = cells_of("long tails", headings=True)
    columns = [head for head in HEADS if head in heads]
    assert headings[2:] == [LABELS[head] for head in columns]
    for (_, _, *cells), name in zip(rows, ("top1", "top1_many", "top1_medium", "top1_few"), strict=True):
        assert cells == [described(ends(heads[head], name=name)) for head in columns]


@pytest.mark.parametrize(("table", "order"), [("variants", VARIED), ("steps", STEPPED)])
def test_trials_follow_from_their_record(table, order):
    record = json.loads((RECORDS / f"{table}.json").read_text())
    assert set(record) == set(order)
    rows = cells_of(table)
    assert all([row[0] for row in rows] == list(record[name]["runs"]) for name in order)
    for number, (trial, *cells) in enumerate(rows):
        other = rows[0 if table == "variants" else max(0, number - 1)][0]
        for name, accuracy, gain in zip(order, cells[::2], cells[1::2], strict=True):
            last = str(max(int(epoch) for epoch in record[name]["runs"][trial][0]["test_top1"]))
            by_seed = [sorted(record[name]["runs"][which], key=lambda run: run["seed"]) for which in (trial, other)]
            own, others = ([100 * run["test_top1"][last] for run in runs] for runs in by_seed)
            assert accuracy == described(own)
            gains = [mine - theirs for mine, theirs in zip(own, others, strict=True)]
            text = f"{statistics.median(gains):+.2f}, {sum(value > 0 for value in gains)} of {len(gains)}"
            assert gain == (text if number else "-")


def test_who_is_ahead_of_whom_follows_from_the_measurements():
    rows = {row[0]: row[1:] for row in cells_of("verdicts")}
    assert len(rows) == len(of_many_classes())
    for name, heads in of_many_classes().items():
        reached = {head: ends(runs) for head, runs in heads.items()}
        facts = first_facts(heads)
        settings, best, *said = rows[title(facts)]
        assert settings == ("searched" if name in searches() else "reused")
        medians = {names(facts)[head]: statistics.median(values) for head, values in reached.items()}
        assert set(best.split(" and ")) == {head for head, median in medians.items() if median == max(medians.values())}
        linear = reached.pop("linear")
        groups = [set(), set(), set()]
        for head, values in reached.items():
            gains = [mine - theirs for mine, theirs in zip(values, linear, strict=True)]
            place = 0 if all(gain > 0 for gain in gains) else 1 if all(gain < 0 for gain in gains) else 2
            groups[place].add(f"{names(facts)[head]} ({statistics.median(gains):+.2f})")
        for group, text in zip(groups, said, strict=True):
            # Names of heads have commas of their own.
            assert len(text) == len(", ".join(group) or "-")
            assert all(entry in text for entry in group)


def test_what_gains_go_with_follows_from_the_measurements():
    experiments = list(of_many_classes().values())
    linear = [heads["linear"] for heads in experiments]
    facts = [first_facts(heads) for heads in experiments]
    expected = [
        [statistics.median(ends(runs)) for runs in linear],
        [statistics.median(ends(runs, name="loss")) for runs in linear],
        [statistics.median(ends(runs, "train")) for runs in linear],
        [fact["num_train"] / fact["num_classes"] for fact in facts],
        [fact["feature_dim"] / fact["num_classes"] for fact in facts],
    ]
    headings, rows = cells_of("gains", headings=True)
    assert headings[0] == f"over {len(experiments)} settings"
    for column, head in enumerate(("cosine", "fixed-etf", None), start=1):
        gains = []
        for heads, fact in zip(experiments, facts, strict=True):
            nearest = "nearest-etf" if is_tight(fact) else "nearest-etf-lagged"
            pairs = zip(ends(heads[head or nearest]), ends(heads["linear"]), strict=True)
            gains.append(statistics.median(mine - their for mine, their in pairs))
        for row, values in zip(rows, expected, strict=True):
            assert float(row[column]) == pytest.approx(statistics.correlation(rankdata(values), rankdata(gains)), abs=6e-3), row


def test_choices_are_the_best_of_the_trials_and_were_made_before_the_seeds_that_count():
    rows = iter(cells_of("choices"))
    for experiment, search in searches().items():
        named = [experiment, str(len(search["trials"]))]
        for head in (head for head in HEADS if head in search["heads"]):
            tried = {}
            for trial in (trial for trial in search["trials"] if trial["head"] == head):
                reached = (trial["measured"]["top1"], -trial["measured"]["loss"])
                tried.setdefault(tuple(trial["settings"].items()), []).append(reached)
            assert {len(of_seeds) for of_seeds in tried.values()} == {len(search["trial_seeds"])}
            means = {own: [round(statistics.fmean(values), 9) for values in zip(*each, strict=True)] for own, each in tried.items()}
            best = max(means, key=means.get)
            assert dict(best) == search["choice"][head]
            name, _, count, label, choice, accuracy = next(rows)
            assert ([name, count], label, accuracy) == (named, LABELS[head], f"{100 * means[best][0]:.2f}")
            assert choice == ", ".join(f"{field} {value:g}" for field, value in best)
            named = ["", ""]
        assert search["planned"] < search["decided"]
        for facts in (facts for name, facts in stored(experiment).items() if name.endswith("config.json")):
            assert search["decided"] <= facts["started"]
            assert facts["configuration"]["validation_fraction"] is None
            assert facts["seed"] not in search["trial_seeds"]
    assert next(rows, None) is None
