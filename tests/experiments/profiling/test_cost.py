"""What heads cost: the record, and that what is timed is a training step."""

import json
import mmap
from dataclasses import replace
from typing import get_args

import pytest
import torch
from lightning_fabric import Fabric
from torch.nn import functional

from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.cli.cost import cost_request
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.profiling import cost as module
from guided_collapse.experiments.profiling.cost import PAPER_ROUTE, CostRequest, measure_cost
from guided_collapse.experiments.profiling.memory import peak_mb, start_counting_memory
from guided_collapse.experiments.profiling.peaks import KNOWN_DEVICES, DeviceName
from guided_collapse.experiments.profiling.step_cost import (
    Marks,
    StepCostRequest,
    _train_step,
    made_up_task,
    measure_step,
)
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.records.reading import read_cost
from guided_collapse.experiments.records.schema import PeakRates, StepCost
from guided_collapse.experiments.training.build import build_model, build_optimizer
from tests.experiments.report.made_up import head_counts

SMALL = replace(PRESETS["ufm-10"], num_classes=4, feature_dim=12, num_samples=20, batch_size=20).resolved()
ANSWER = StepCost(
    **dict(zip(StepCost.PARTS, (1.0, 2.0, 4.0, 8.0), strict=True)),
    peak_mb=16.0,
    steps=3,
    feature_dim=12,
    num_classes=4,
    hardware={"cpu": "Abacus"},
)


@pytest.fixture(autouse=True)
def _no_git(monkeypatch):
    """Tests here stand in for the processes that measure, and only for those."""
    monkeypatch.setattr("guided_collapse.experiments.training.environment.commit", lambda: "0" * 40)


def asked(head, **changes):
    return StepCostRequest(SMALL.to_dict(), head, **{"steps": 2, "warm_up": 1, "seconds": 60.0, "accelerator": "cpu"} | changes)


def answering(monkeypatch, answers):
    monkeypatch.setattr(module, "_measured", lambda configuration, head, request: answers[head])


@pytest.mark.parametrize("head", [*HEADS, "paper-route"])
def test_every_head_is_measured(head):
    answer = measure_step(asked(head))
    assert all(getattr(answer, name) > 0 for name in StepCost.PARTS)
    assert (answer.steps, answer.note) == (2, None)
    assert (answer.feature_dim, answer.num_classes) == (12, 4)
    assert [counts.device_kind for counts in answer.counts] == ([] if head == PAPER_ROUTE else ["cpu", "accelerator"])
    assert {counts.head for counts in answer.counts} <= {head}


def test_a_step_too_slow_for_warm_up_is_measured_all_the_same():
    assert measure_step(asked("nearest-etf", warm_up=5, seconds=0.0)).steps == 1


def test_what_does_not_fit_has_its_forward_time_and_says_why(monkeypatch):
    def refuse(*_):
        raise MemoryError("needs 7 bytes")

    monkeypatch.setattr("guided_collapse.paper.route.jacobian_by_declarative_node", refuse)
    answer = measure_step(asked("paper-route"))
    assert answer.head_forward_ms > 0
    assert answer.head_backward_ms is None
    assert answer.note == "needs 7 bytes"


@pytest.mark.parametrize("head", ["cosine", "nearest-etf"])
def test_the_timed_step_is_a_training_step(head):
    configuration = replace(SMALL, head=head)
    task = made_up_task(configuration)
    batch = next(task.training_batches(1, ProcessShare()))
    fabric, models = Fabric(accelerator="cpu", devices=1), []
    for timed in (True, False):
        model = build_model(configuration, task, torch.device("cpu"))
        optimizer = build_optimizer(configuration, model.parameters())
        for _ in range(3):
            if timed:
                marks = Marks(torch.device("cpu"))
                _train_step(model, optimizer, fabric, batch, marks)
                assert len(marks.milliseconds()) == len(StepCost.PARTS)
            else:
                optimizer.zero_grad()
                functional.cross_entropy(model(*batch), batch.labels).backward()
                optimizer.step()
        models.append(model)
    for (name, value), other in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        torch.testing.assert_close(value, other, msg=name)


@pytest.mark.parametrize("name", ["digits", "cifar10-vgg13", "imagenet-resnet50"])
def test_no_data_are_needed(name):
    configuration = replace(PRESETS[name], batch_size=12).resolved()
    inputs, labels = next(made_up_task(configuration).training_batches(1, ProcessShare()))
    shapes = {"digits": (12, 1, 8, 8), "cifar10-vgg13": (12, 3, 32, 32), "imagenet-resnet50": (12, 3, 224, 224)}
    assert inputs.shape == shapes[name]
    assert len(labels) == 12


def test_the_record_is_what_the_report_reads(monkeypatch, tmp_path):
    unfinished = StepCost(head_forward_ms=2.0, backbone_forward_ms=1.0, peak_mb=5.0, note="needs 7 bytes", steps=1)
    answering(monkeypatch, {"nearest-etf": ANSWER, "cosine": ANSWER, "paper-route": unfinished})
    file = measure_cost(SMALL, CostRequest(heads=("nearest-etf", "cosine"), batch_size=8, out=tmp_path))
    assert file == tmp_path / "ufm-10" / "cost.json"
    record = read_cost(file)
    assert [row.head for row in record.rows] == ["nearest-etf", "cosine", "paper-route"]
    first, _, paper = record.rows
    assert (first.forward_ms, first.backward_ms) == (3.0, 12.0)
    assert (first.head_forward_ms, first.head_backward_ms, first.peak_mb) == (2.0, 4.0, 16.0)
    assert (paper.forward_ms, paper.backward_ms, paper.peak_mb, paper.note) == (3.0, None, None, "needs 7 bytes")
    assert record.conditions == {"batch_size": 8, "feature_dim": 12, "num_classes": 4, "precision": "32-true"}
    assert record.hardware == {"cpu": "Abacus"}
    assert (record.counts, record.peaks) == ((), None)


def test_counts_and_peak_rates_are_in_the_record(monkeypatch, tmp_path):
    answering(monkeypatch, {head: replace(ANSWER, counts=(head_counts(head),)) for head in ("nearest-etf", "fixed-etf")})
    request = CostRequest(heads=("nearest-etf", "fixed-etf"), paper_route=False, out=tmp_path, device_named="A100")
    record = read_cost(measure_cost(SMALL, request))
    assert record.counts == (head_counts("nearest-etf"), head_counts("fixed-etf"))
    assert (record.peaks.device_name, record.peaks.float32_tflops, record.peaks.memory_gbs) == ("A100", 19.5, 1555.0)
    record = read_cost(measure_cost(SMALL, replace(request, device_named=None, peak_tflops=3.0, peak_gbs=7.0)))
    assert record.peaks == PeakRates(float32_tflops=3.0, memory_gbs=7.0, source="as given")


def test_every_known_device_has_rates_and_a_source():
    assert set(KNOWN_DEVICES) == set(get_args(DeviceName))
    for name, device in KNOWN_DEVICES.items():
        assert device.device_name == name
        assert 1 < device.float32_tflops < 200
        assert 50 < device.memory_gbs < 10_000
        assert len(device.source) > 10


def test_what_was_given_up_is_in_the_record(monkeypatch, tmp_path):
    def run(*_, timeout, **__):
        raise module.subprocess.TimeoutExpired("step_cost", timeout)

    monkeypatch.setattr(module.subprocess, "run", run)
    file = measure_cost(SMALL, CostRequest(heads=("fixed-etf",), paper_route=False, limit_seconds=5, out=tmp_path))
    (row,) = read_cost(file).rows
    assert (row.forward_ms, row.note) == (None, "not one step done after 5 s")


def dying(status):
    return module.subprocess.CompletedProcess([], status, "", "Traceback\nImportError: install pymanopt\n")


def test_a_process_that_was_killed_is_in_the_record(monkeypatch, tmp_path):
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: dying(-9))
    file = measure_cost(SMALL, CostRequest(heads=("fixed-etf",), paper_route=False, out=tmp_path))
    assert "killed by signal 9" in json.loads(file.read_text())["rows"][0]["note"]


def test_a_head_that_fails_does_not_take_the_others_with_it(monkeypatch, tmp_path):
    fine = module.subprocess.CompletedProcess([], 0, json.dumps(ANSWER.to_json()), "")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, input, **__: dying(1) if PAPER_ROUTE in input else fine)
    first, paper = read_cost(measure_cost(SMALL, CostRequest(heads=("fixed-etf",), out=tmp_path))).rows
    assert first.forward_ms == 3.0
    assert (paper.forward_ms, paper.note) == (None, "failed: ImportError: install pymanopt")
    with pytest.raises(RuntimeError, match="no head could be measured: failed: ImportError: install pymanopt"):
        measure_cost(SMALL, CostRequest(heads=(), out=tmp_path))


def test_what_was_measured_survives_an_interruption(monkeypatch, tmp_path):
    def run(*_, input, **__):
        if "cosine" in json.loads(input)["head"]:
            raise KeyboardInterrupt
        return module.subprocess.CompletedProcess([], 0, json.dumps(ANSWER.to_json()), "")

    monkeypatch.setattr(module.subprocess, "run", run)
    with pytest.raises(KeyboardInterrupt):
        measure_cost(SMALL, CostRequest(heads=("fixed-etf", "cosine"), out=tmp_path))
    assert [row.head for row in read_cost(tmp_path / "ufm-10" / "cost.json").rows] == ["fixed-etf"]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_measured", lambda *_: pytest.fail("measured"))
    (tmp_path / "ufm-10").write_text("in the way")
    with pytest.raises(RequestError, match=r"File exists: .*ufm-10"):
        measure_cost(SMALL, CostRequest(out=tmp_path))


def test_flags():
    configuration, request = cost_request("ufm-100", ["--heads", "fixed-etf", "--steps", "4", "--no-paper-route"])
    assert configuration == PRESETS["ufm-100"]
    assert request == CostRequest(heads=("fixed-etf",), steps=4, paper_route=False)
    for name, flags, said in [
        (None, [], "cost needs an experiment"),
        ("ufm-11", [], "Did you mean"),
        ("ufm-10", ["--heads", "fxed"], "Did you mean"),
    ]:
        with pytest.raises(ValueError, match=said):
            cost_request(name, flags)


def test_requests_that_measure_nothing():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        CostRequest(steps=0)
    for options, said in [
        ({"peak_tflops": 20.0}, "go together; got peak_tflops alone"),
        ({"peak_gbs": 20.0}, "go together; got peak_gbs alone"),
        ({"peak_tflops": 0.0, "peak_gbs": 20.0}, "peak_tflops must be positive; got 0"),
        ({"peak_tflops": 1.0, "peak_gbs": -1.0}, "peak_gbs must be positive; got -1"),
        ({"device_named": "A100", "peak_gbs": 20.0}, "got A100 and peak_gbs"),
        ({"device_named": "A10"}, "device_named must be one of A100"),
        ({"device_named": "A100", "heads": ()}, "without effect"),
    ]:
        with pytest.raises(RequestError, match=said):
            CostRequest(**options)
    with pytest.raises(ValueError, match="at least one head"):
        CostRequest(heads=(), paper_route=False)


def test_memory_is_counted_from_the_start_asked_for():
    device = torch.device("cpu")
    # Fresh pages: a tensor might get memory that an earlier one has left behind.
    with mmap.mmap(-1, 200_000_000) as before_the_start:
        before_the_start.write(bytes(200_000_000))
    before = start_counting_memory(device)
    with mmap.mmap(-1, 100_000_000) as held:
        for start in range(0, 100_000_000, 1_000_000):
            held[start : start + 1_000_000] = bytes(1_000_000)
    assert 99 < peak_mb(device) - before < 110
