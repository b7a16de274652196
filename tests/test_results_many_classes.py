"""The tables of many classes, recomputed from the measurements without the code that made them."""

import gzip
import itertools
import json
import math
import statistics

import pytest
from scipy.stats import spearmanr

from guided_collapse.records.declared.heads import HEADS
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
    return LABELS | ({"fixed": "Fixed frame", "implicit": "Nearest frame, lagged"} if is_tight(facts) else {})


def shown_nearest(facts):
    return "implicit" if is_tight(facts) else "implicit-lagged"


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
        aims = {facts["seed"]: lines[-1]["test"]["top1"] for facts, lines in heads["standard-unnormalised"]}
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


AXIS = ("standard-unnormalised", "standard", "fixed", "implicit-lagged")


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
    assert headings[1] == LABELS["standard-unnormalised"]
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
        linear = reached.pop("standard-unnormalised")
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
    linear = [heads["standard-unnormalised"] for heads in experiments]
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
    for column, head in enumerate(("standard", "fixed", None), start=1):
        gains = []
        for heads, fact in zip(experiments, facts, strict=True):
            own, theirs = (ends(heads[name]) for name in (head or shown_nearest(fact), "standard-unnormalised"))
            gains.append(statistics.median(mine - their for mine, their in zip(own, theirs, strict=True)))
        for row, values in zip(rows, expected, strict=True):
            assert float(row[column]) == pytest.approx(spearmanr(values, gains).statistic, abs=6e-3), row


def test_what_the_pages_say_in_words_holds():
    """Who is ahead of nn.Linear on which seeds, as docs/choosing.md, docs/frames.md and README.md sum it up."""
    gains, medians = {}, {}
    for name, heads in of_many_classes().items():
        linear = ends(heads["standard-unnormalised"])
        medians[name] = {head: statistics.median(ends(runs)) for head, runs in heads.items()}
        for head, runs in heads.items():
            gains[name, head] = [100 * (mine - theirs) for mine, theirs in zip(ends(runs), linear, strict=True)]
    few_dimensions = [name for name, heads in of_many_classes().items() if is_tight(first_facts(heads))]
    assert len(few_dimensions) == 9
    for head in ("standard", "fixed", "implicit-lagged"):
        drawings = [gains[name, head] for name in ("omniglot-of-4", "omniglot-of-8", "omniglot-small")]
        assert min(map(min, drawings)) > 0
        typical = [statistics.median(values) for values in drawings]
        assert typical == sorted(typical, reverse=True)
        some, more = (gains[f"tiny-imagenet-{which}", head] for which in ("of-30", "small"))
        assert min(some) > 0
        assert min(gains["tiny-imagenet-of-10", head]) > 0
        assert statistics.median(gains["tiny-imagenet-of-10", head]) < 1
        assert abs(statistics.median(more)) < 1
        assert min(more) < 0 < max(more)
    most = {head: gains["tiny-imagenet-of-300", head] for head in ("standard", "fixed", "implicit-lagged")}
    assert max(most["fixed"]) < 0
    assert max(most["implicit-lagged"]) < 0
    assert statistics.median(most["fixed"]) > -1
    assert statistics.median(most["implicit-lagged"]) < -2
    fitted = {
        which: {head: ends(runs, "train") for head, runs in of_many_classes()[f"tiny-imagenet-of-{which}"].items()}
        for which in (10, 300)
    }
    for head, sign in (("fixed", 1), ("implicit-lagged", -1)):
        pairs = zip(fitted[300][head], fitted[300]["standard-unnormalised"], strict=True)
        assert all(sign * (own - linear) > 0 for own, linear in pairs)
    assert min(fitted[10].pop("standard-unnormalised")) == 1 > max(map(max, fitted[10].values()))
    assert medians["tiny-imagenet-of-300"]["standard-unnormalised"] == max(medians["tiny-imagenet-of-300"].values())
    assert max(medians["tiny-imagenet-of-10"].values()) < 0.1
    assert all(min(gains[name, "implicit"]) > 0 for name in few_dimensions if name.startswith("cifar10-turned"))
    for name in few_dimensions:
        assert medians[name]["implicit"] > medians[name]["fixed"] + 0.02
        assert max(gains[name, "implicit"]) > 0
        assert max(gains[name, "fixed"]) < 0 or name == "omniglot-in-64"
        assert medians[name]["standard"] > medians[name]["implicit"] or not name.endswith("in-16")
    highest = [max(of_heads, key=of_heads.__getitem__) for of_heads in medians.values()]
    assert highest.count("standard") > len(highest) / 2
    tails = {head: gains["tiny-imagenet-long-tailed", head] for head in medians["tiny-imagenet-long-tailed"]}
    assert {head for head, values in tails.items() if max(values) < 0} == {"standard"}
    assert {head for head, values in tails.items() if min(values) > 0} == {"implicit", "implicit-detached"}
    assert max(statistics.median(values) for values in tails.values()) < 1
    assert medians["tiny-imagenet-long-tailed"]["implicit"] > medians["tiny-imagenet-long-tailed"]["implicit-lagged"]
    runs = of_many_classes()["tiny-imagenet-long-tailed"]
    for head in ("implicit", "implicit-detached"):
        medium = zip(*(ends(runs[name], name="top1_medium") for name in (head, "standard-unnormalised")), strict=True)
        assert all(own > linear for own, linear in medium)
    assert max(max(ends(of_head, name="top1_few")) for of_head in runs.values()) < 0.005
    both = [name for name in medians if "implicit-detached" in medians[name]]
    assert len(both) == 3
    assert all(medians[name]["implicit-detached"] > medians[name]["implicit"] for name in both)
    assert max(gains["tiny-imagenet-small", "implicit"]) < 0 < min(gains["omniglot-small", "implicit"])
    for name in ("tiny-imagenet-small", "omniglot-small"):
        assert medians[name]["implicit"] < medians[name]["implicit-lagged"]


def search_of(experiment):
    return json.loads((RECORDS / f"{experiment}-search" / "search.json").read_text())


def test_what_the_pages_say_of_settings_holds():
    short, whole, more = map(search_of, ("tiny-imagenet-short-trials", "tiny-imagenet-small", "tiny-imagenet-of-300"))
    assert short["trial_epochs"] * 2 == whole["trial_epochs"] == whole["configuration"]["epochs"]
    assert (max(short["grid"]["learning_rate"]), max(whole["grid"]["learning_rate"])) == (0.3, 1)
    for search, fixed, linear in ((short, 0.03, 0.1), (whole, 1, 0.3)):
        assert search["choice"]["fixed"]["learning_rate"] == fixed
        assert search["choice"]["standard-unnormalised"]["learning_rate"] == linear
    for head in ("standard", "fixed", "implicit-lagged"):
        reached = {tuple(trial["settings"].items()): trial["measured"]["top1"] for trial in more["trials"] if trial["head"] == head}
        assert reached[tuple(whole["choice"][head].items())] < max(reached.values()) - 0.009
    searches = [json.loads(file.read_text()) for file in RECORDS.rglob("search.json")]
    rates = [
        own["learning_rate"]
        for search in searches
        if search["experiment"] != short["experiment"]
        for own in search["choice"].values()
    ]
    assert sum(rate >= 0.3 for rate in rates) > 0.7 * len(rates)


def tried(file, name):
    """Test accuracy at the end in per cent, by seed, of all that was tried, in order."""
    runs = json.loads((RECORDS / f"{file}.json").read_text())[name]["runs"]
    return [{run["seed"]: 100 * run["test_top1"][max(run["test_top1"], key=int)] for run in of_one} for of_one in runs.values()]


def ahead(own, other):
    return [own[seed] - other[seed] for seed in own]


def test_what_the_page_says_of_variants_holds():
    plain, *others = tried("variants", "omniglot-small")
    assert all(min(ahead(variant, plain)) > 0 for variant in others[:4])
    plain, *others = tried("variants", "tiny-imagenet-small")
    assert all(max(ahead(variant, plain)) < 0 for variant in others[:5])
    assert min(ahead(others[5], plain)) > 0


def test_what_the_page_says_of_steps_holds():
    drawings, images = ([ahead(own, other) for other, own in itertools.pairwise(tried("steps", name))] for name in STEPPED)
    assert min(map(min, [drawings[0], drawings[1], images[0]])) > 0
    assert abs(statistics.median(drawings[1]) - statistics.median(drawings[0])) < 1
    assert max(images[1]) < 0
    assert all(abs(statistics.median(values)) < 1 for values in (drawings[2], drawings[3], images[2], images[3]))
    assert max(images[2]) < 0 < min(images[3])
    assert max(map(statistics.median, (drawings[4], images[4]))) < 0
    median = statistics.median(tried("steps", "omniglot-of-4")[0].values())
    assert median > 100 * statistics.median(ends(of_many_classes()["omniglot-of-4"]["standard-unnormalised"])) + 0.5
    first, _, *on_spheres = tried("steps", "omniglot-of-4")
    assert min(min(ahead(own, first)) for own in on_spheres) > 3


def test_what_the_page_says_of_what_gains_go_with_holds():
    test_accuracy, test_loss, train_accuracy, num_images, dimensions = (
        [float(cell) for cell in row[1:]] for row in cells_of("gains")
    )
    assert max(num_images) < -0.4
    assert dimensions[1] > 0.7
    assert max(dimensions[0], dimensions[2]) < 0.4
    assert min(test_accuracy[0], -test_loss[0], train_accuracy[0]) > 0.4


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
