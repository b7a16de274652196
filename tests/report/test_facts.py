from guided_collapse.records.reading import read_records
from guided_collapse.report.experiment import by_experiment
from guided_collapse.report.facts import configuration_rows, listed, machines, protocols, span
from tests.report.made_up import write_run


def test_a_configuration_says_in_what_runs_differ(tmp_path):
    write_run(tmp_path, head="standard", configuration={"epochs": 20, "gain": 10.0, "seed": 0, "stem": None})
    write_run(tmp_path, head="fixed", epochs=30, configuration={"epochs": 30, "gain": 10.0, "seed": 1})
    write_run(tmp_path, head="fixed", seed=1, epochs=30, configuration={"epochs": 30, "gain": 10.0, "seed": 2})
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
    for head in ("standard", "fixed"):
        differences = ["augmented"] if head == "standard" else ["augmented", "own batches"]
        write_run(tmp_path, head=head, protocol="paper", protocol_differences=differences)
    experiment = by_experiment(read_records([tmp_path]).runs)[0]
    assert protocols(experiment) == ["paper, every head as the paper has it", "augmented", "fixed: own batches"]
    write_run(tmp_path, head="implicit", protocol="other")
    experiment = by_experiment(read_records([tmp_path]).runs)[0]
    assert "other (implicit)" in protocols(experiment)


def test_texts():
    assert span([3, 3]) == "3"
    assert span([5, 3]) == "3 to 5"
    assert listed({"a": 1, "b": "two"}) == "a 1, b two"
