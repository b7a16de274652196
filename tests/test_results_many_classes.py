"""The tables of many classes, recomputed from the measurements without the code that made them."""

import gzip
import json
import math
import statistics

import pytest

from guided_collapse.records.declared.heads import HEADS
from results.many_classes import DATA
from tests.test_results import RECORDS, cells_of

pytestmark = pytest.mark.thorough

LABELS = {head: declared.label for head, declared in HEADS.items()}


def of_many_classes():
    """What the runs on these data were and came to: experiment, head, and a list of facts and measurements by seed."""
    found = {}
    for file in sorted(RECORDS.rglob("seed-*/config.json")):
        facts = json.loads(file.read_text())
        if facts["configuration"]["data"] in DATA:
            lines = map(json.loads, gzip.decompress((file.parent / "metrics.jsonl.gz").read_bytes()).splitlines())
            measured = [line for line in lines if line.get("test")]
            found.setdefault(facts["experiment"], {}).setdefault(facts["head"], []).append((facts, measured))
    return found


def title(facts):
    data, images = DATA[facts["configuration"]["data"]], facts["num_train"] / facts["num_classes"]
    return f"{data}, {facts['num_classes']} classes of {images:g} images, {facts['feature_dim']} features"


def described(values):
    low, middle, high = (f"{100 * value:.2f}" for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


def is_tight(facts):
    return facts["num_classes"] > facts["feature_dim"] + 1


def when(epochs_of_runs):
    """Median and range of the first epochs, in words."""
    firsts = [epochs[0] if epochs else math.inf for epochs in epochs_of_runs]
    low, middle, high = (f"{value:g}".replace("inf", "never") for value in (min(firsts), statistics.median(firsts), max(firsts)))
    return middle if low == high else f"{middle} ({low} to {high})"


def test_accuracies_follow_from_the_measurements():
    expected = {False: [], True: []}
    for heads in of_many_classes().values():
        facts = next(iter(heads.values()))[0][0]
        last = facts["configuration"]["epochs"]
        shown = [("test", 3), ("test", 5), *([("test", last)] if last > 5 else []), ("train", last)]
        for number, (part, epoch) in enumerate(shown):
            values = {
                LABELS[head]: described([next(line[part]["top1"] for line in lines if line["epoch"] == epoch) for _, lines in runs])
                for head, runs in heads.items()
            }
            name = f"{title(facts)}, 3 seeds" if number == 0 else ""
            expected[is_tight(facts)].append((name, f"{part} accuracy after {epoch} epochs, %", values))
        aims = {facts["seed"]: lines[-1]["test"]["top1"] for facts, lines in heads["standard-unnormalised"]}
        soon = {
            LABELS[head]: when(
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


def test_who_is_ahead_of_whom_follows_from_the_measurements():
    rows = {row[0]: row[1:] for row in cells_of("verdicts")}
    experiments = of_many_classes()
    assert len(rows) == len(experiments)
    for heads in experiments.values():
        ends = {head: [100 * lines[-1]["test"]["top1"] for _, lines in runs] for head, runs in heads.items()}
        best, *said = rows[title(next(iter(heads.values()))[0][0])]
        medians = {LABELS[head]: statistics.median(values) for head, values in ends.items()}
        assert medians[best] == max(medians.values())
        linear = ends.pop("standard-unnormalised")
        groups = [set(), set(), set()]
        for head, values in ends.items():
            gains = [mine - theirs for mine, theirs in zip(values, linear, strict=True)]
            place = 0 if all(gain > 0 for gain in gains) else 1 if all(gain < 0 for gain in gains) else 2
            groups[place].add(f"{LABELS[head]} ({statistics.median(gains):+.2f})")
        for group, text in zip(groups, said, strict=True):
            # Names of heads have commas of their own.
            assert len(text) == len(", ".join(group) or "-")
            assert all(entry in text for entry in group)


def test_choices_are_the_best_of_the_trials():
    rows = iter(cells_of("choices"))
    for file in sorted(RECORDS.rglob("search.json")):
        search = json.loads(file.read_text())
        named = [search["experiment"], str(len(search["trials"]))]
        for head in (head for head in HEADS if head in search["heads"]):
            trials = [trial for trial in search["trials"] if trial["head"] == head]
            best = max(trials, key=lambda trial: (trial["measured"]["top1"], -trial["measured"]["loss"]))
            assert best["settings"] == search["choice"][head]
            experiment, _, count, name, choice, accuracy = next(rows)
            assert [experiment, count] == named
            assert (name, accuracy) == (LABELS[head], f"{100 * best['measured']['top1']:.2f}")
            assert choice == ", ".join(f"{field} {value:g}" for field, value in best["settings"].items())
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
