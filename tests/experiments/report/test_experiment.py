import pytest

from guided_collapse.experiments.records.declared.quantities import MARGIN, NC1, TRAIN_LOSS
from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.report.experiment import by_experiment, configuration_rows, listed, machines, protocols, span
from tests.experiments.report.made_up import write_run


def test_runs_are_grouped_and_ordered(tmp_path):
    for name, classes in (("ufm-100", 100), ("ufm-20", 20), ("zoo", 10), ("free", 5)):
        configuration = {"backbone": "unconstrained"} if name == "free" else {}
        write_run(tmp_path, name, "cosine", 1, num_classes=classes, num_test=0, configuration=configuration)
    write_run(tmp_path, "zoo", "nearest-etf", 0)
    write_run(tmp_path, "zoo", "cosine", 0, state="failed")
    experiments = by_experiment(read_records([tmp_path]).runs)
    assert [experiment.name for experiment in experiments] == ["zoo", "free", "ufm-20", "ufm-100"]
    zoo = experiments[0]
    assert zoo.heads == ["cosine", "nearest-etf"]
    assert [run.seed for run in zoo.of("cosine")] == [1]
    assert [run.seed for run in zoo.all_of("cosine")] == [0, 1]
    assert zoo.has_test
    assert not experiments[1].has_test
    assert [experiment.unconstrained for experiment in experiments] == [False, True, True, True]


def test_references_are_what_theory_gives(tmp_path):
    write_run(tmp_path, "toy", "cosine", loss_lower_bound=0.5, num_classes=10)
    write_run(tmp_path, "toy", "fixed-etf", loss_lower_bound=0.25, num_classes=10)
    write_run(tmp_path, "toy", "linear", loss_lower_bound=None, num_classes=10)
    toy = by_experiment(read_records([tmp_path]).runs)[0]
    assert toy.references(TRAIN_LOSS) == [0.25, 0.5]
    assert toy.references(MARGIN) == [pytest.approx(10 / 9)]
    assert toy.reaches_the_bound
    for feature_dim, margins in ((8, [1.0]), (4, [])):
        write_run(tmp_path / f"in-{feature_dim}", "narrow", loss_lower_bound=0.5, num_classes=10, feature_dim=feature_dim)
        narrow = by_experiment(read_records([tmp_path / f"in-{feature_dim}"]).runs)[0]
        assert narrow.references(MARGIN) == margins
        assert not narrow.reaches_the_bound
    assert toy.references(NC1) == []


def test_a_configuration_says_in_what_runs_differ(tmp_path):
    write_run(tmp_path, head="cosine", configuration={"epochs": 20, "gain": 10.0, "seed": 0, "stem": None})
    write_run(tmp_path, head="fixed-etf", epochs=30, configuration={"epochs": 30, "gain": 10.0, "seed": 1})
    write_run(tmp_path, head="fixed-etf", seed=1, epochs=30, configuration={"epochs": 30, "gain": 10.0, "seed": 2})
    rows = configuration_rows(by_experiment(read_records([tmp_path]).runs)[0])
    assert sorted(rows) == [("epochs", "30 (fixed); 20 (standard)", True), ("gain", "10.0", False), ("stem", "null", False)]


def test_machines_are_counted(tmp_path):
    write_run(tmp_path, seed=0)
    write_run(tmp_path, seed=1)
    write_run(tmp_path, seed=2, hardware={}, commit=None)
    found = machines(read_records([tmp_path]).runs)
    assert [count for *_, count in found] == [2, 1]
    assert found[0][0] == "cpu Abacus, cores 2, threads 1, devices cpu, processes 1"
    assert (found[1][0], found[1][2]) == ("not recorded", "not recorded")


def test_protocols_say_what_sets_heads_apart(tmp_path):
    for head in ("cosine", "fixed-etf"):
        differences = ["augmented"] if head == "cosine" else ["augmented", "own batches"]
        write_run(tmp_path, head=head, protocol="paper", protocol_differences=differences)
    experiment = by_experiment(read_records([tmp_path]).runs)[0]
    assert protocols(experiment) == ["paper, every head as the paper has it", "augmented", "fixed: own batches"]
    write_run(tmp_path, head="nearest-etf", protocol="other")
    experiment = by_experiment(read_records([tmp_path]).runs)[0]
    assert "other (implicit)" in protocols(experiment)


def test_texts():
    assert span([3, 3]) == "3"
    assert span([5, 3]) == "3 to 5"
    assert listed({"a": 1, "b": "two"}) == "a 1, b two"
