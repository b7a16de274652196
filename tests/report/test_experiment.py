import pytest

from guided_collapse.records.quantities import MARGIN, NC1, TRAIN_LOSS
from guided_collapse.records.reading import read_records
from guided_collapse.report.experiment import by_experiment
from tests.report.made_up import write_run


def test_runs_are_grouped_and_ordered(tmp_path):
    for name, classes in (("ufm-100", 100), ("ufm-20", 20), ("zoo", 10), ("free", 5)):
        configuration = {"backbone": "unconstrained"} if name == "free" else {}
        write_run(tmp_path, name, "standard", 1, num_classes=classes, num_test=0, configuration=configuration)
    write_run(tmp_path, "zoo", "implicit", 0)
    write_run(tmp_path, "zoo", "standard", 0, state="failed")
    experiments = by_experiment(read_records([tmp_path]).runs)
    assert [experiment.name for experiment in experiments] == ["zoo", "free", "ufm-20", "ufm-100"]
    zoo = experiments[0]
    assert zoo.heads == ["standard", "implicit"]
    assert [run.seed for run in zoo.of("standard")] == [1]
    assert [run.seed for run in zoo.all_of("standard")] == [0, 1]
    assert zoo.has_test
    assert not experiments[1].has_test
    assert [experiment.unconstrained for experiment in experiments] == [False, True, True, True]


def test_references_are_what_theory_gives(tmp_path):
    write_run(tmp_path, "toy", "standard", loss_lower_bound=0.5, num_classes=10)
    write_run(tmp_path, "toy", "fixed", loss_lower_bound=0.25, num_classes=10)
    write_run(tmp_path, "toy", "standard-unnormalised", loss_lower_bound=None, num_classes=10)
    toy = by_experiment(read_records([tmp_path]).runs)[0]
    assert toy.references(TRAIN_LOSS) == [0.25, 0.5]
    assert toy.references(MARGIN) == [pytest.approx(10 / 9)]
    assert toy.references(NC1) == []
