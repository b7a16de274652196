"""The records of upgrades and their tables, recomputed by independent code."""

import json
import re
import statistics
from itertools import product

import pytest

from results import tables
from tests.test_results import RECORDS, ROOT, described

# What is trained for each method on the page, and which of its tests is shown.
TRAINED = {
    "old/old": ("old", "old/old"),
    "nn.Linear": ("linear", "new/old"),
    "nn.Linear, Procrustes": ("linear", "procrustes"),
    "nn.Linear, linear map": ("linear", "linear map"),
    "nn.Linear, logits": ("linear", "logits"),
    "cosine": ("cosine", "new/old"),
    "cosine, Procrustes": ("cosine", "procrustes"),
    "cosine, linear map": ("cosine", "linear map"),
    "old rows, new ones learned": ("rows", "new/old"),
    "old rows, old means for new ones": ("rows and means", "new/old"),
    "planned frame": ("planned", "new/old"),
    "planned frame: its old/old": ("planned", "old/old"),
    "old means": ("means", "new/old"),
    "halfway": ("halfway", "new/old"),
    "nearest frame": ("frame", "new/old"),
    "pull": ("pull", "new/old"),
    "old means and pull": ("means and pull", "new/old"),
}
every_study = pytest.mark.parametrize("study", tables.GALLERIES)
# Learning rates and scales that are tried; the pull beside the head is tried with some weights.
SCALES = (3.0, 5.0, 8.0, 12.0, 20.0)
GRIDS = {"clinc150": ((0.001, 0.003, 0.01), SCALES), "omniglot": ((0.003, 0.01, 0.03), SCALES)}
TINY_GRID = ((0.003,), (3.0, 5.0, 8.0, 20.0))
WITHOUT_SCALE = ("old", "linear", "pull")
SEEDS = set(range(5))


def record_of(study):
    return json.loads((RECORDS / f"upgrade-{study}.json").read_text())


def trainings(record, kind, *, trials=False):
    return [each for each in record["trainings"] if each["kind"] == kind and (each["seed"] == 1000) == trials]


def shown(name, page="results-upgrades.md"):
    text = (ROOT / "docs" / page).read_text()
    (table,) = re.findall(rf"<!-- from the records: {name} -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def results(record, method, test):
    """Those of a method's setting, by seed."""
    kind, own = TRAINED[method]
    setting = record["choice"]["old" if kind == "old" else method.partition(":")[0]]
    return {each["seed"]: each["tests"][test or own] for each in trainings(record, kind) if each["settings"] == setting}


@every_study
def test_tables_follow_from_the_records(study):
    record = record_of(study)
    rows = shown(f"upgrade {study.replace('-', ' ')}")
    assert [row[0] for row in rows] == [name for name in TRAINED if name.partition(":")[0] in ("old/old", *record["choice"])]
    old = results(record, "old/old", None)
    assert old.keys() == SEEDS
    parts = ["top1", "top1_unseen", "top1_among_unseen"][: 1 if record["num_known"] == record["num_classes"] else 3]
    for name, *cells in rows:
        found = results(record, name, None)
        assert found.keys() == old.keys()
        expected = [described([100 * found[seed][part] for seed in found]) for part in parts]
        owned = TRAINED[name][1] == "new/old"
        expected.append(described([100 * each["top1"] for each in results(record, name, "new/new").values()]) if owned else "-")
        ahead = sum(found[seed]["top1"] > old[seed]["top1"] for seed in old)
        expected.append("-" if name.endswith("old/old") else f"{ahead} of {len(old)}")
        assert cells == expected, name


@every_study
def test_settings_are_the_best_of_the_same_grid_on_validation_samples(study):
    record = record_of(study)
    rates, scales = GRIDS.get(study, TINY_GRID)
    for method, setting in record["choice"].items():
        kind, test = TRAINED["old/old" if method == "old" else method]
        if method in ("nn.Linear", "cosine"):
            test = "new/new"  # an independent model is chosen for itself
        if kind == "means and pull":
            grid = [setting]
            assert setting.items() > record["choice"]["old means"].items()
        elif kind in WITHOUT_SCALE:
            grid = [{"rate": rate} for rate in rates]
        else:
            grid = [{"rate": rate, "scale": scale} for rate, scale in product(rates, scales)]
        tried = trainings(record, kind, trials=True)
        assert setting in grid
        if tried:
            assert all(settings in [each["settings"] for each in tried] for settings in grid)
            best = max(each["tests"][test]["top1"] for each in tried)
            assert best in [each["tests"][test]["top1"] for each in tried if each["settings"] == setting], method
        else:
            assert len(grid) == 1, method  # nothing to choose


def test_the_short_table_shows_the_best_map_and_what_to_weigh_it_against():
    methods = (("old means", None), ("halfway", None), ("cosine", "new/new"))
    for study, (_, old, mapped, *others) in zip(tables.GALLERIES, shown("upgrades in short", "upgrading.md"), strict=True):
        record = record_of(study)

        def top1(method, test=None, record=record):
            return [100 * each["top1"] for each in results(record, method, test).values()]

        maps = [top1(name) for name, (_, test) in TRAINED.items() if test in ("procrustes", "linear map")]
        assert [old, *others] == [described(top1("old/old")), *(described(top1(*each)) for each in methods)]
        assert mapped == described(max(maps, key=statistics.median))


def test_the_order_on_clinc150_on_every_seed():
    record = record_of("clinc150")
    mapped = [name for name, (_, test) in TRAINED.items() if test in ("procrustes", "linear map")]
    for seed in range(5):
        top1 = {name: results(record, name, None)[seed]["top1"] for name in ("nn.Linear", "old/old", "old means", *mapped)}
        of_linear = max(top1[name] for name in mapped if name.startswith("nn.Linear"))
        assert top1["nn.Linear"] < of_linear < top1["old/old"] < top1["old means"]
        assert max(top1[name] for name in mapped) < top1["old means"]
