"""The tables of many classes, recomputed from the measurements without the code that made them."""

import gzip
import json
import math
import statistics

import pytest
from scipy.stats import spearmanr

from guided_collapse.experiments.heads import HEADS
from results.many_classes import DATA
from tests.test_results import RECORDS, cells_of

pytestmark = pytest.mark.thorough

STEPPED = ("omniglot-of-4", "tiny-imagenet-small")
LABELS = {head: declared.label for head, declared in HEADS.items()}


def of_many_classes(pattern="**"):
    """What the runs on these data were and came to: experiment, head, and a list of facts and measurements by seed."""
    found = {}
    for file in sorted(RECORDS.glob(f"{pattern}/seed-*/config.json")):
        facts = json.loads(file.read_text())
        if facts["configuration"]["data"] in DATA:
            lines = map(json.loads, gzip.decompress((file.parent / "metrics.jsonl.gz").read_bytes()).splitlines())
            measured = [line for line in lines if line.get("test")]
            found.setdefault(facts["experiment"], {}).setdefault(facts["head"], []).append((facts, measured))
    return found


def title(facts):
    data = DATA[facts["configuration"]["data"]]
    amount = ", long-tailed 50 to 1" if is_long_tailed(facts) else f" of {images(facts)} images"
    epochs = facts["configuration"]["epochs"]
    return f"{data}, {facts['num_classes']} classes{amount}, {facts['feature_dim']} features, {epochs} epochs"


def images(facts):
    """Of each class, as the configuration asks for them; otherwise all that there are."""
    all_there_are = {"omniglot-small1": 16, "cifar10-turned": 50}
    return facts["configuration"]["images_per_class"] or all_there_are[facts["configuration"]["data"]]


def is_long_tailed(facts):
    return facts["configuration"]["long_tail_ratio"] == 50


def described(values):
    low, middle, high = (f"{100 * value:.2f}" for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def is_tight(facts):
    return facts["num_classes"] > facts["feature_dim"] + 1


def names(facts):
    """Of the heads, in a row of a table."""
    return LABELS | ({"fixed-etf": "Fixed frame", "nearest-etf": "Nearest frame, lagged"} if is_tight(facts) else {})


def shown_nearest(facts):
    return "nearest-etf" if is_tight(facts) else "nearest-etf-lagged"


def ends(runs, part="test", name="top1"):
    return [lines[-1][part][name] for _, lines in runs]


def at_epoch(runs, part, epoch):
    return [next(line[part]["top1"] for line in lines if line["epoch"] == epoch) for _, lines in runs]


def first_facts(heads):
    return next(iter(heads.values()))[0][0]


def when(epochs_of_runs):
    """Median and range of the first epochs, in words."""
    firsts = [epochs[0] if epochs else math.inf for epochs in epochs_of_runs]
    low, middle, high = (f"{value:g}".replace("inf", "never") for value in (min(firsts), statistics.median(firsts), max(firsts)))
    return middle if low == high else f"{middle} ({low} to {high})"


def test_accuracies_follow_from_the_measurements():
    expected = {False: [], True: []}
    searched = of_many_classes("*-search/chosen/*/*")
    searched = {name: heads for name, heads in searched.items() if not is_long_tailed(first_facts(heads))}
    in_few_dimensions = {name: heads for name, heads in of_many_classes().items() if is_tight(first_facts(heads))}
    for heads in (searched | in_few_dimensions).values():
        facts = first_facts(heads)
        last = facts["configuration"]["epochs"]
        shown = [("test", 3), ("test", 5), *([("test", last)] if last > 5 else []), ("train", last)]
        for number, (part, epoch) in enumerate(shown):
            values = {names(facts)[head]: described(at_epoch(runs, part, epoch)) for head, runs in heads.items()}
            name = f"{title(facts)}, 3 seeds" if number == 0 else ""
            expected[is_tight(facts)].append((name, f"{part} accuracy after {epoch} epochs, %", values))
        aims = {facts["seed"]: lines[-1]["test"]["top1"] for facts, lines in heads["linear"]}
        soon = {
            names(facts)[head]: when(
                [[line["epoch"] for line in lines if line["test"]["top1"] >= aims[facts["seed"]]] for facts, lines in runs]
            )
            for head, runs in heads.items()
        }
        expected[is_tight(facts)].append(("", "epochs to the test accuracy that nn.Linear ends with", soon))
    for tight, table in ((False, "many classes"), (True, "more classes than dimensions")):
        headings, rows = cells_of(table, headings=True)
        found = [
            (row[0], row[1], {head: cell for head, cell in zip(headings[2:], row[2:], strict=True) if cell != "-"}) for row in rows
        ]
        assert len(found) == len(expected[tight])
        assert all(row in expected[tight] for row in found)


AXIS = ("linear", "cosine", "fixed-etf", "nearest-etf-lagged")


def test_accuracies_by_the_number_of_images_follow_from_the_measurements():
    expected = []
    for heads in of_many_classes().values():
        facts = first_facts(heads)
        if not is_tight(facts) and not is_long_tailed(facts):
            data, epochs = facts["configuration"]["data"], facts["configuration"]["epochs"]
            name = f"{DATA[data]}, {images(facts)} images of each class, {epochs} epochs"
            test, train = ([described(ends(heads[head], part)) for head in AXIS] for part in ("test", "train"))
            expected.append((data, images(facts), [[name, "test accuracy, %", *test], ["", "train accuracy, %", *train]]))
    headings, rows = cells_of("amounts of images", headings=True)
    assert headings[2:] == [LABELS[head] for head in AXIS]
    assert rows == [row for *_, both in sorted(expected) for row in both]


def test_accuracies_under_long_tails_follow_from_the_measurements():
    (heads,) = (heads for heads in of_many_classes().values() if is_long_tailed(first_facts(heads)))
    headings, rows = cells_of("long tails", headings=True)
    columns = [head for head in HEADS if head in heads]
    assert headings[2:] == [LABELS[head] for head in columns]
    for (_, _, *cells), name in zip(rows, ("top1", "top1_many", "top1_medium", "top1_few"), strict=True):
        assert cells == [described(ends(heads[head], name=name)) for head in columns]


def test_the_short_table_follows_from_the_measurements():
    headings, rows = cells_of("many classes in short", headings=True)
    assert headings[1] == LABELS["linear"]
    found = {first: cells for first, *cells in rows}
    experiments = [heads for heads in of_many_classes().values() if not is_tight(first_facts(heads))]
    assert len(found) == len(experiments)
    for heads in experiments:
        assert found[title(first_facts(heads))] == [described(ends(heads[head])) for head in AXIS]


@pytest.mark.parametrize(
    ("table", "order", "is_compared_with_the_first"),
    [
        ("variants", ("omniglot-small", "tiny-imagenet-small"), True),
        ("steps", STEPPED, False),
    ],
)
def test_trials_follow_from_their_record(table, order, is_compared_with_the_first):
    record = json.loads((RECORDS / f"{table}.json").read_text())
    names = [name for name in order if name in record]
    rows = cells_of(table)
    assert all([row[0] for row in rows] == list(record[name]["runs"]) for name in names)
    assert len(names) == len(record)
    for number, (trial, *cells) in enumerate(rows):
        other = rows[0][0] if is_compared_with_the_first or number == 0 else rows[number - 1][0]
        for name, accuracy, gain in zip(names, cells[::2], cells[1::2], strict=True):
            last = str(max(int(epoch) for epoch in record[name]["runs"][trial][0]["test_top1"]))
            own, others = (
                [run["test_top1"][last] for run in sorted(record[name]["runs"][which], key=lambda run: run["seed"])]
                for which in (trial, other)
            )
            assert accuracy == described(own)
            gains = [100 * (mine - theirs) for mine, theirs in zip(own, others, strict=True)]
            text = f"{statistics.median(gains):+.2f}, {sum(value > 0 for value in gains)} of {len(gains)}"
            assert gain == (text if number else "-")


def test_who_is_ahead_of_whom_follows_from_the_measurements():
    rows = {row[0]: row[1:] for row in cells_of("verdicts")}
    experiments = of_many_classes()
    assert len(rows) == len(experiments)
    for name, heads in experiments.items():
        reached = {head: [100 * value for value in ends(runs)] for head, runs in heads.items()}
        facts = first_facts(heads)
        settings, best, *said = rows[title(facts)]
        assert settings == ("searched" if (RECORDS / f"{name}-search").exists() else "taken over")
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
            own, theirs = (ends(heads[name]) for name in (head or shown_nearest(fact), "linear"))
            gains.append(statistics.median(mine - their for mine, their in zip(own, theirs, strict=True)))
        for row, values in zip(rows, expected, strict=True):
            assert float(row[column]) == pytest.approx(spearmanr(values, gains).statistic, abs=6e-3), row


def test_choices_are_the_best_of_the_trials():
    rows = iter(cells_of("choices"))
    for file in sorted(RECORDS.rglob("search.json")):
        search = json.loads(file.read_text())
        named = [search["experiment"], str(len(search["trials"]))]
        for head in (head for head in HEADS if head in search["heads"]):
            measured = {}
            for trial in search["trials"]:
                if trial["head"] == head:
                    measured.setdefault(tuple(trial["settings"].items()), []).append(trial["measured"])
            assert {len(of_seeds) for of_seeds in measured.values()} == {len(search["trial_seeds"])}
            top1, loss = (
                {settings: statistics.fmean(each[name] for each in of_seeds) for settings, of_seeds in measured.items()}
                for name in ("top1", "loss")
            )
            best = max(measured, key=lambda settings: (round(top1[settings], 9), -loss[settings]))
            assert dict(best) == search["choice"][head]
            experiment, _, count, name, choice, accuracy = next(rows)
            assert [experiment, count] == named
            assert (name, accuracy) == (LABELS[head], f"{100 * top1[best]:.2f}")
            assert choice == ", ".join(f"{field} {value:g}" for field, value in best)
            named = ["", ""]
    assert next(rows, None) is None


def test_searches_were_decided_before_the_seeds_that_count():
    for file in sorted(RECORDS.rglob("search.json")):
        search = json.loads(file.read_text())
        assert search["planned"] < search["decided"]
        for run in file.parent.rglob("seed-*/config.json"):
            facts = json.loads(run.read_text())
            assert search["decided"] <= facts["started"]
            assert facts["configuration"]["validation_fraction"] is None
            assert facts["seed"] not in search["trial_seeds"]
