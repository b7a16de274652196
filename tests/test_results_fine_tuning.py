"""The records of heads on pretrained features: they follow the protocol, and their tables are recomputed by independent code."""

import itertools
import json
import statistics

import pytest

from guided_collapse.experiments.heads import HEADS
from results import pretrained_tables
from tests.test_results import RECORDS, described, stored

SIX = ["linear", "cosine", "sphere-linear", "fixed-etf", "nearest-etf", "nearest-etf-lagged"]
KINDS = {
    "CLINC150, frozen vectors": "clinc150-probe",
    "CLINC150, frozen vectors and neck": "clinc150",
    "CLINC150, trained vectors and neck": "clinc150-trained",
    "Omniglot, frozen network": "omniglot-lite0-probe",
    "Omniglot, frozen network and neck": "omniglot-lite0",
    "Omniglot, whole network": "omniglot-tuned",
}
ARCHIVES = sorted(file.stem for file in (RECORDS / "pretrained").glob("*.zip"))
TRAINED = json.loads((RECORDS / "clinc150-trained.json").read_text())
OTHERS = json.loads((RECORDS / "clinc150-out-of-scope.json").read_text())["runs"]


def rows_of(name):
    """Without the headings, which end with all heads, or with all but nn.Linear."""
    first, _, *rows = [
        row.removeprefix("| ").removesuffix(" |").split(" | ") for row in pretrained_tables.all_tables(RECORDS)[name]
    ]
    labels = [HEADS[head].label for head in SIX]
    assert first[-5:] == labels[1:]
    assert first[-6] == labels[0] or len(first) == 6
    return rows


def settings(grid, head):
    """Every setting that the grid has for a head."""
    names = [name for name in grid if name != "scale" or head != "linear"]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(grid[name] for name in names))]


def setting_of(title):
    """Test accuracy in percent by head and seed."""
    kind, _, number = title.removesuffix(" of each class").rpartition(", ")
    if KINDS[kind] == "clinc150-trained":
        return {head: {seed: 100 * tests["top1"] for seed, tests in trained(number, head).items()} for head in SIX}
    files = stored(f"{KINDS[kind]}-of-{number}")
    lines = {head: [files[f"{head}/seed-{seed}/metrics.jsonl"] for seed in range(5)] for head in files["search.json"]["heads"]}
    return {head: {seed: 100 * each[-1]["test"]["top1"] for seed, each in enumerate(of)} for head, of in lines.items()}


def trained(number, head, *, trials=False):
    """The tests of token vectors that learned: of the chosen setting by seed, or of trials by setting."""
    chosen, found = TRAINED["choice"][number][head], {}
    for run in TRAINED["trainings"]:
        if (run["per_class"], run["head"]) == (int(number), head) and (run["seed"] == 1000) == trials:
            assert trials or run["settings"] == chosen
            found[json.dumps(run["settings"]) if trials else run["seed"]] = run["tests"]
    return found


@pytest.mark.parametrize("name", ARCHIVES)
def test_every_head_had_the_same_grid_and_fresh_seeds_of_its_best_setting(name):
    files = stored(name)
    search = files["search.json"]
    heads = search["heads"]
    assert heads == (SIX[:3] if "-probe-" in name else SIX)  # without a neck, only heads with parameters have something to learn
    assert set(search["seeds"]) == set(range(5))
    assert not set(search["seeds"]) & set(search["trial_seeds"])
    shared = []
    for head in heads:
        trials = [trial for trial in search["trials"] if trial["head"] == head]
        assert [trial["settings"] for trial in trials] == settings(search["grid"], head)
        best = max(trials, key=lambda trial: (round(trial["measured"]["top1"], 9), -trial["measured"]["loss"]))
        assert search["choice"][head] == best["settings"]
        for seed in range(5):
            facts = files[f"{head}/seed-{seed}/config.json"]
            used = facts["configuration"]
            assert {field: used[field] for field in best["settings"]} == best["settings"]
            assert used["validation_fraction"] is None  # trained on all samples, and tested on those of the test
            shared.append({field: value for field, value in used.items() if field not in ("head", "seed", *search["grid"])})
    assert all(each == shared[0] for each in shared)


@pytest.mark.parametrize("number", TRAINED["choice"])
def test_heads_on_trained_vectors_had_the_same_protocol(number):
    for head in SIX:
        trials = {setting: tests["top1"] for setting, tests in trained(number, head, trials=True).items()}
        assert list(trials) == [json.dumps(setting) for setting in settings(TRAINED["grid"], head)]
        assert json.dumps(TRAINED["choice"][number][head]) == max(trials, key=trials.get)
        assert set(trained(number, head)) == set(range(5))


def test_the_tables_of_accuracy_follow_from_the_records():
    rows = rows_of("pretrained accuracy")
    assert len(rows) == len(ARCHIVES) + len(TRAINED["choice"])
    for (title, *cells), (again, *gains) in zip(rows, rows_of("pretrained"), strict=True):
        accuracy = setting_of(title)
        assert title == again
        assert cells == [described(list(accuracy.get(head, {}).values())) for head in SIX]
        for head, cell in zip(SIX[1:], gains, strict=True):
            if head not in accuracy:
                assert cell == "-"
                continue
            ahead = [accuracy[head][seed] - accuracy["linear"][seed] for seed in range(5)]
            middle, low, high = statistics.median(ahead), min(ahead), max(ahead)
            assert cell == f"{middle:+.2f} ({low:+.2f} to {high:+.2f}), {sum(gain > 0 for gain in ahead)} of 5"


def test_the_table_of_queries_without_an_intent_follows_from_the_records():
    scores = {"largest logit": "auroc_max_logit", "distance to the nearest class mean": "auroc_distance"}
    title = ""
    rows = rows_of("out of scope")
    assert len(rows) == 2 * (len({name.partition("/")[0] for name in OTHERS}) + len(TRAINED["choice"]))
    for first, score, *cells in rows:
        title = first or title
        kind, _, number = title.removesuffix(" of each class").rpartition(", ")
        for head, cell in zip(SIX, cells, strict=True):
            if KINDS[kind] == "clinc150-trained":
                tests = trained(number, head)
            else:
                names = {seed: f"{KINDS[kind]}-of-{number}/{head}/seed-{seed}" for seed in range(5)}
                tests = {seed: OTHERS[name] for seed, name in names.items() if name in OTHERS}
            assert cell == described([100 * each[scores[score]] for each in tests.values()])


def test_the_runs_measured_for_out_of_scope_are_those_of_the_archives():
    for name, tests in OTHERS.items():
        experiment, _, run = name.partition("/")
        assert tests["top1"] == pytest.approx(stored(experiment)[f"{run}/metrics.jsonl"][-1]["test"]["top1"], abs=2e-3), name


def test_losses_of_another_library_had_the_same_protocol_and_their_table_follows_from_the_record():
    record = json.loads((RECORDS / "metric-learning.json").read_text())
    rows = [
        row.removeprefix("| ").removesuffix(" |").split(" | ") for row in pretrained_tables.all_tables(RECORDS)["metric learning"]
    ]
    final = {}
    for method, chosen in record["choice"].items():
        runs = [run for run in record["trainings"] if run["method"] == method]
        trials = {json.dumps(run["settings"]): run["tests"]["top1"] for run in runs if run["seed"] == 1000}
        assert len(trials) == {"linear": 4, "ArcFaceLoss": 24}.get(method, 12)
        assert json.dumps(chosen) == max(trials, key=trials.get)
        final[method] = {run["seed"]: run["tests"] for run in runs if run["seed"] != 1000}
        assert set(final[method]) == set(range(5))
        assert all(run["settings"] == chosen for run in runs if run["seed"] != 1000)
    for (method, tests), (name, _, top1, _, nearest, ahead) in zip(final.items(), rows[2:], strict=True):
        assert name == (HEADS[method].label if method in HEADS else f"`{method}`")
        assert [top1, nearest] == [described([100 * tests[seed][score] for seed in range(5)]) for score in ("top1", "nearest")]
        if method != "linear":
            gains = [100 * (tests[seed]["nearest"] - final["linear"][seed]["nearest"]) for seed in range(5)]
            assert ahead.startswith(f"{statistics.median(gains):+.2f} (")
