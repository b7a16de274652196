"""The records of upgrades and their tables, recomputed without the code that made them."""

import json
import re

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


def record_of(study):
    return json.loads((RECORDS / f"upgrade-{study}.json").read_text())


def trainings(record, kind, *, trials=False):
    return [each for each in record["trainings"] if each["kind"] == kind and (each["seed"] == 1000) == trials]


def shown(study):
    page = (ROOT / "docs" / "upgrading.md").read_text()
    (table,) = re.findall(
        rf"<!-- from the records: upgrade {study.replace('-', ' ')} -->\n\n(.*?)\n\n<!-- end -->", page, re.DOTALL
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def results(record, method, test):
    """Those of a method's setting, by seed."""
    kind, own = TRAINED[method]
    setting = record["choice"]["old" if kind == "old" else method.partition(":")[0]]
    return {each["seed"]: each["tests"][test or own] for each in trainings(record, kind) if each["settings"] == setting}


@every_study
def test_tables_follow_from_the_records(study):
    record = record_of(study)
    rows = shown(study)
    assert [row[0] for row in rows] == [name for name in TRAINED if name.partition(":")[0] in ("old/old", *record["choice"])]
    old = results(record, "old/old", None)
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
    for method, setting in record["choice"].items():
        kind, test = TRAINED["old/old" if method == "old" else method]
        if method in ("nn.Linear", "cosine"):
            test = "new/new"  # an independent model is chosen for itself
        tried = trainings(record, kind, trials=True)
        if tried:
            best = max(each["tests"][test]["top1"] for each in tried)
            assert best in [each["tests"][test]["top1"] for each in tried if each["settings"] == setting], method


def test_the_order_on_clinc150_on_every_seed():
    record = record_of("clinc150")
    mapped = [name for name, (_, test) in TRAINED.items() if test in ("procrustes", "linear map")]
    for seed in range(5):
        top1 = {name: results(record, name, None)[seed]["top1"] for name in ("nn.Linear", "old/old", "old means", *mapped)}
        of_linear = max(top1[name] for name in mapped if name.startswith("nn.Linear"))
        assert top1["nn.Linear"] < of_linear < top1["old/old"] < top1["old means"]
        assert max(top1[name] for name in mapped) < top1["old means"]
