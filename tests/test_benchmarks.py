"""The benchmarks run on tiny sizes, and their tables show what they measured."""

import json
from dataclasses import replace

import pytest
import torch
from lightning_fabric import Fabric
from torch.nn import functional

from benchmarks import cost, cost_tables, many_classes, solve, steps
from benchmarks.counting import CountOperations
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.loop import build_optimizer
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.tasks import build_model

SMALL = replace(PRESETS["ufm-10"], num_classes=4, feature_dim=12, num_samples=20, batch_size=20).resolved()
CPU = torch.device("cpu")


def counts_of(compute):
    with CountOperations() as counting:
        compute()
    return counting.counts


@pytest.mark.parametrize("head", [*(name for name in HEADS if name != "anchored"), cost.PAPER_ROUTE])
def test_every_head_is_measured(head):
    is_paper_route = head == cost.PAPER_ROUTE
    configuration = SMALL if is_paper_route else replace(SMALL, head=head)
    options = {"steps": 2, "warm_up": 1, "seconds": 60.0, "accelerator": "cpu"}
    answer = cost.measure_step(configuration, paper_route=is_paper_route, **options)
    assert all(answer[name] > 0 for name in cost.PARTS)
    assert (answer["steps"], answer["note"], answer["feature_dim"], answer["num_classes"]) == (2, None, 12, 4)
    assert [counts["device_kind"] for counts in answer["counts"]] == ([] if is_paper_route else ["cpu", "accelerator"])
    for counts in answer["counts"][1:]:
        assert (counts["waits"], counts["double_precision"], counts["factorizations"]) == (0, 0, 0)


def test_the_timed_step_is_a_training_step():
    configuration = replace(SMALL, head="nearest-etf")
    task = cost.made_up_task(configuration)
    batch = next(task.training_batches(1, ProcessShare()))
    timed, plain = (build_model(configuration, task, CPU) for _ in range(2))
    of_timed, of_plain = (build_optimizer(configuration, model) for model in (timed, plain))
    for _ in range(3):
        cost.train_step(timed, of_timed, Fabric(accelerator="cpu", devices=1), batch, cost.Marks(CPU))
        of_plain.zero_grad()
        functional.cross_entropy(plain(*batch), batch.labels).backward()
        of_plain.step()
    for (name, value), other in zip(timed.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=name)


@pytest.mark.slow
def test_cost_prints_its_tables_and_writes_a_record(tmp_path, capsys):
    flags = ["--heads", "fixed-etf", "--no-paper-route", "--steps", "1", "--warm-up", "0", "--batch-size", "20"]
    cost.main(["ufm-10", *flags, "--peak-rates", "20", "500", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "ufm-10.json").read_text())
    assert [row["head"] for row in record["rows"]] == ["fixed-etf"]
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == str(tmp_path / "ufm-10.json")
    assert "lower bound (ms)" in out


def test_tables_of_costs():
    times = {"forward_ms": 3.0, "backward_ms": 1234.5, "head_forward_ms": 2.0, "head_backward_ms": None, "peak_mb": 12.5}
    counts = {"operations": 250, "waits": 14, "double_precision": 17, "factorizations": 1, "work": 4e9, "moved_bytes": 10**8}
    record = {"experiment": "ufm-10", "rows": [{"head": "nearest-etf", "note": None, **times}], "hardware": {"cpu": "Abacus"}}
    record["counts"] = [{"head": "nearest-etf", "device_kind": "accelerator", "solver": "products", **counts}]
    record |= {"batch_size": 8, "peaks": {"float32_tflops": 20.0, "memory_gbs": 500.0, "source": "as given"}}
    tables = (cost_tables.cost_table, cost_tables.memory_table, cost_tables.counts_table)
    cells = {table.name: table.cells.values.tolist() for table in (table([record]) for table in tables)}
    assert cells["cost"] == [["ufm-10", "nearest-etf", "3", "1,234", "2", "-", "12.5", ""]]
    assert cells["memory"][0] == ["ufm-10", "ours", "-", "-", "12.5 MB", "-"]
    assert cells["memory"][1] == ["ufm-10", "paper", "1.5 GB", "1.5 GB", "1.6 GB", "1.5 GB"]
    assert cells["counts"] == [["ufm-10", "nearest-etf", "accelerator", "products", "250", "14", "17", "1", "4", "100", "0.2"]]


def test_counts_of_single_operations():
    vector = torch.ones(8)
    assert counts_of(lambda: float(vector[0])).waits == 1
    assert counts_of(lambda: vector + vector).moved_bytes == 3 * 32
    assert counts_of(lambda: vector[2:]).operations == 0
    assert cost.step_counts(torch.nn.Linear(24, 6), 30, CPU).work == 3 * 2 * 30 * 24 * 6
    for name in ("eigh", "svd", "qr", "cholesky", "inv", "eigvalsh", "svdvals", "det", "eig"):
        assert counts_of(lambda name=name: getattr(torch.linalg, name)(torch.eye(4) + 0.1)).factorizations == 1


def test_steps(tmp_path, capsys):
    steps.main(["--rounds", "2", "--sizes", "12", "4", "20", "--record", str(tmp_path / "steps.json")])
    (found,) = json.loads((tmp_path / "steps.json").read_text())
    assert set(found["ratios"]) == set(steps.HEADS)
    assert found["operations"]["nearest-etf by products"] > found["operations"]["linear"]
    assert "nearest-etf-lagged every 10" in capsys.readouterr().out


def test_solve_counts_every_method_but_the_papers():
    found = {method: solve.measure(method, 24, 4) for method in solve.METHODS if method != solve.PAPER_ROUTE}
    assert all(result["forward and backward"] > 0 for result in found.values())
    assert found["factors"]["counts"]["factorizations"] == found["autograd through svd"]["counts"]["factorizations"] == 1


def test_many_classes():
    training = many_classes.Training("nearest", 8, 40)
    labels = torch.randint(0, 40, (16,))
    assert training.seconds_of_a_step(torch.randn(16, many_classes.INPUT_DIM), labels) > 0
