"""What the pages say in words of heads with many classes, held against the records."""

import itertools
import json
import statistics

import pytest

from tests.test_results import RECORDS, cells_of
from tests.test_results_many_classes import STEPPED, ends, first_facts, is_tight, of_many_classes

pytestmark = pytest.mark.thorough


def test_what_the_pages_say_in_words_holds():
    """Who is ahead of nn.Linear on which seeds, as docs/choosing.md, docs/frames.md and README.md sum it up."""
    gains, medians = {}, {}
    for name, heads in of_many_classes().items():
        linear = ends(heads["linear"])
        medians[name] = {head: statistics.median(ends(runs)) for head, runs in heads.items()}
        for head, runs in heads.items():
            gains[name, head] = [100 * (mine - theirs) for mine, theirs in zip(ends(runs), linear, strict=True)]
    few_dimensions = [name for name, heads in of_many_classes().items() if is_tight(first_facts(heads))]
    assert len(few_dimensions) == 9
    for head in ("cosine", "fixed-etf", "nearest-etf-lagged"):
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
    most = {head: gains["tiny-imagenet-of-300", head] for head in ("cosine", "fixed-etf", "nearest-etf-lagged")}
    assert max(most["fixed-etf"]) < 0
    assert max(most["nearest-etf-lagged"]) < 0
    assert statistics.median(most["fixed-etf"]) > -1
    assert statistics.median(most["nearest-etf-lagged"]) < -2
    fitted = {
        which: {head: ends(runs, "train") for head, runs in of_many_classes()[f"tiny-imagenet-of-{which}"].items()}
        for which in (10, 300)
    }
    for head, sign in (("fixed-etf", 1), ("nearest-etf-lagged", -1)):
        pairs = zip(fitted[300][head], fitted[300]["linear"], strict=True)
        assert all(sign * (own - linear) > 0 for own, linear in pairs)
    assert min(fitted[10].pop("linear")) == 1 > max(map(max, fitted[10].values()))
    assert medians["tiny-imagenet-of-300"]["linear"] == max(medians["tiny-imagenet-of-300"].values())
    assert max(medians["tiny-imagenet-of-10"].values()) < 0.1
    assert all(min(gains[name, "nearest-etf"]) > 0 for name in few_dimensions if name.startswith("cifar10-turned"))
    for name in few_dimensions:
        assert medians[name]["nearest-etf"] > medians[name]["fixed-etf"] + 0.02
        assert max(gains[name, "nearest-etf"]) > 0
        assert max(gains[name, "fixed-etf"]) < 0 or name == "omniglot-in-64"
        assert medians[name]["cosine"] > medians[name]["nearest-etf"] or not name.endswith("in-16")
    highest = [max(of_heads, key=of_heads.__getitem__) for of_heads in medians.values()]
    assert highest.count("cosine") > len(highest) / 2
    tails = {head: gains["tiny-imagenet-long-tailed", head] for head in medians["tiny-imagenet-long-tailed"]}
    assert {head for head, values in tails.items() if max(values) < 0} == {"cosine"}
    assert {head for head, values in tails.items() if min(values) > 0} == {"nearest-etf", "nearest-etf-detached"}
    assert max(statistics.median(values) for values in tails.values()) < 1
    assert medians["tiny-imagenet-long-tailed"]["nearest-etf"] > medians["tiny-imagenet-long-tailed"]["nearest-etf-lagged"]
    runs = of_many_classes()["tiny-imagenet-long-tailed"]
    for head in ("nearest-etf", "nearest-etf-detached"):
        medium = zip(*(ends(runs[name], name="top1_medium") for name in (head, "linear")), strict=True)
        assert all(own > linear for own, linear in medium)
    assert max(max(ends(of_head, name="top1_few")) for of_head in runs.values()) < 0.005
    both = [name for name in medians if "nearest-etf-detached" in medians[name]]
    assert len(both) == 3
    assert all(medians[name]["nearest-etf-detached"] > medians[name]["nearest-etf"] for name in both)
    assert max(gains["tiny-imagenet-small", "nearest-etf"]) < 0 < min(gains["omniglot-small", "nearest-etf"])
    for name in ("tiny-imagenet-small", "omniglot-small"):
        assert medians[name]["nearest-etf"] < medians[name]["nearest-etf-lagged"]


def search_of(experiment):
    return json.loads((RECORDS / f"{experiment}-search" / "search.json").read_text())


def test_what_the_pages_say_of_settings_holds():
    short, whole, more = map(search_of, ("tiny-imagenet-short-trials", "tiny-imagenet-small", "tiny-imagenet-of-300"))
    assert short["trial_epochs"] * 2 == whole["trial_epochs"] == whole["configuration"]["epochs"]
    assert (max(short["grid"]["learning_rate"]), max(whole["grid"]["learning_rate"])) == (0.3, 1)
    for search, fixed, linear in ((short, 0.03, 0.1), (whole, 1, 0.3)):
        assert search["choice"]["fixed-etf"]["learning_rate"] == fixed
        assert search["choice"]["linear"]["learning_rate"] == linear
    for head in ("cosine", "fixed-etf", "nearest-etf-lagged"):
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
    assert median > 100 * statistics.median(ends(of_many_classes()["omniglot-of-4"]["linear"])) + 0.5
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
