import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from guided_collapse.experiments import loop
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import run_status
from tests.experiments.runs import DIGITS, FREE, UNANCHORED, InterruptionError, assert_same, contents, placed, records, weights


@pytest.mark.parametrize("configuration", [DIGITS, FREE], ids=["images", "free"])
@pytest.mark.parametrize("head", UNANCHORED)
def test_every_head_runs_to_the_end_and_leaves_its_files(head, configuration, tmp_path):
    configuration = replace(configuration, head=head, epochs=1)
    run = train(configuration, placed(tmp_path))
    assert run.path == tmp_path / configuration.experiment / head / "seed-0"
    assert set(contents(run.path)) == {"config.json", "metrics.jsonl", "margins.npz", "last.ckpt", "model.safetensors"}
    assert run_status(run.path).state == "finished"
    (record,) = records(run)
    assert record["epoch"] == 1
    assert ("test" in record) == (configuration is not FREE and configuration.data == "digits")
    facts = run.facts()
    assert facts.configuration == configuration.resolved().to_dict()
    assert facts.protocol_differences == ()
    assert (facts.loss_lower_bound is None) == (head in ("linear", "sphere-linear"))


def test_measured_are_the_first_ten_epochs_every_fifth_and_the_last(tmp_path):
    run = train(replace(FREE, epochs=17), placed(tmp_path))
    assert [record["epoch"] for record in records(run)] == list(range(1, 18))
    assert [record["epoch"] for record in records(run) if "train" in record] == [*range(1, 11), 15, 17]


@pytest.mark.parametrize("configuration", [replace(DIGITS, flip=True), FREE], ids=["images", "free"])
def test_the_same_seed_gives_the_same_run_and_another_another(configuration, tmp_path):
    one, again = (train(configuration, placed(tmp_path / name)) for name in ("one", "again"))
    assert_same(one, again)
    other = train(replace(configuration, seed=1), placed(tmp_path / "one"))
    assert records(other) != records(one)


def at_every_step(patch, call):
    """Calls something before the backward pass of every step."""
    backward = loop.Fabric.backward

    def both(fabric, loss):
        call()
        backward(fabric, loss)

    patch.setattr(loop.Fabric, "backward", both)


@pytest.mark.parametrize("optimizer", ["agd", "sgd", "adamw"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(optimizer, tmp_path, monkeypatch):
    configuration = replace(DIGITS, optimizer=optimizer, epochs=4, flip=True, trace=True)
    whole = train(configuration, placed(tmp_path / "whole"))
    steps = []

    def interrupted():
        steps.append(0)
        if len(steps) == 15:  # six steps an epoch
            raise InterruptionError

    at_every_step(monkeypatch, interrupted)
    with pytest.raises(InterruptionError):
        train(configuration, placed(tmp_path / "cut", checkpoint_seconds=0.0))
    failed = tmp_path / "cut" / "digits" / "nearest-etf" / "seed-0" / "failed.json"
    failure = json.loads(failed.read_text())
    assert failure["error"].startswith("InterruptionError")
    assert failure["traceback"].startswith("Traceback (most recent call last):\n")
    assert "in train_epoch" in failure["traceback"]
    monkeypatch.undo()
    resumed = train(configuration, placed(tmp_path / "cut"))
    assert_same(whole, resumed)
    assert not failed.exists()


def test_a_finished_run_is_left_alone(tmp_path, capsys):
    run = train(replace(FREE, epochs=2), placed(tmp_path))
    before = {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()}
    capsys.readouterr()
    train(replace(FREE, epochs=2), placed(tmp_path))
    assert capsys.readouterr().err == "ufm-10 nearest-etf seed 0: already finished\n"
    assert before == {file.name: file.stat().st_mtime_ns for file in run.path.iterdir()}


def test_a_folder_with_another_configuration_is_refused_and_kept(tmp_path):
    run = train(replace(FREE, epochs=2), placed(tmp_path))
    before = weights(run)
    with pytest.raises(ValueError, match=r"epochs is 2, not 3. Choose another --out .*, add --lengthen, or move it away\.$"):
        train(replace(FREE, epochs=3), placed(tmp_path))
    with pytest.raises(
        ValueError, match=r"epochs is 2, not 3; gain is 10.0, not 1.0. Choose another --out or --experiment, or move"
    ):
        train(replace(FREE, epochs=3, gain=1.0), placed(tmp_path))
    assert all(np.array_equal(tensor, weights(run)[name]) for name, tensor in before.items())


@pytest.mark.parametrize("configuration", [replace(DIGITS, epochs=3, flip=True), replace(FREE, epochs=15)], ids=["images", "free"])
def test_a_lengthened_run_equals_one_that_was_meant_to_be_so_long(configuration, tmp_path):
    whole = train(configuration, placed(tmp_path / "whole"))
    short = train(replace(configuration, epochs=configuration.epochs // 3), placed(tmp_path / "short"))
    train(configuration, placed(tmp_path / "short", lengthen=True))
    assert_same(whole, short)


@pytest.mark.parametrize(("asked_for", "taken"), [(None, 1), ("2", 2)])
def test_a_run_goes_on_with_as_many_threads_as_it_began_with(asked_for, taken, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, seen = torch.get_num_threads(), set()
    try:
        torch.set_num_threads(1)
        train(replace(FREE, epochs=2), placed(tmp_path))
        torch.set_num_threads(2)
        if asked_for:
            monkeypatch.setenv("OMP_NUM_THREADS", asked_for)
        at_every_step(monkeypatch, lambda: seen.add(torch.get_num_threads()))
        train(replace(FREE, epochs=4), placed(tmp_path, lengthen=True))
        assert (seen, torch.get_num_threads()) == ({taken}, 2)
    finally:
        torch.set_num_threads(before)
    said = "from epoch 3 of 4 on cpu, so results are the same only up to rounding: threads 2 instead of 1\n"
    assert (said in capsys.readouterr().err) == (taken == 2)


@pytest.mark.parametrize(
    ("optimizer", "epochs", "message"),
    [
        ("agd", 1, r"epochs must be at least the run's 2; got 1"),
        ("sgd", 3, r"schedule is cosine over 2 epochs; got epochs=3. Start a new run"),
    ],
)
def test_a_run_that_cannot_be_longer_is_kept(optimizer, epochs, message, tmp_path):
    configuration = replace(FREE, optimizer=optimizer, epochs=2)
    run = train(configuration, placed(tmp_path))
    with pytest.raises(ValueError, match=message):
        train(replace(configuration, epochs=epochs), placed(tmp_path, lengthen=True))
    assert run.is_finished(configuration.resolved())


def test_learned_weights_are_not_centered_in_the_papers_protocol(tmp_path):
    run = train(replace(FREE, head="cosine", protocol="paper", epochs=1), placed(tmp_path))
    assert not any("centering" in name for name in weights(run))
    assert run.facts().protocol == "paper"
    assert [words.rpartition(": ")[2] for words in run.facts().protocol_differences] == ["shuffled", "not centered"]
    fair = train(replace(FREE, head="cosine", epochs=1), placed(tmp_path / "fair"))
    assert any("centering" in name for name in weights(fair))


def test_trace_puts_the_rows_of_an_etf_on_the_corners_of_a_simplex(tmp_path):
    run = train(replace(FREE, trace=True, epochs=12), placed(tmp_path))
    with np.load(run.path / "trace.npz") as trace:
        assert trace["epochs"].tolist() == [*range(1, 11), 12]
        corners = trace["weights"][-1]
        np.testing.assert_allclose(np.linalg.norm(corners, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(corners @ corners.T + 1 / 3, 4 / 3 * np.eye(4), atol=1e-5)
        # Near collapse the class means have come to the corners.
        assert np.abs(trace["means"][-1] - corners).max() < 0.2
        assert trace["samples"].shape == (11, len(trace["sample_labels"]), 3)


@pytest.mark.parametrize("head", ["cosine", "fixed-etf", "nearest-etf"])
def test_more_classes_than_dimensions_are_trained_measured_and_traced_in_their_own_space(head, tmp_path):
    narrow = replace(FREE, head=head, feature_dim=3, num_classes=6, trace=True, epochs=12)
    run = train(narrow, placed(tmp_path))
    measured = records(run)[-1]["train"]
    assert measured["weight_equiangularity"] is None
    assert measured["mean_equiangularity"] is None
    refused = {"weight_equiangularity", "mean_equiangularity"}
    assert all(math.isfinite(value) for name, value in measured.items() if name not in refused)
    with np.load(run.path / "trace.npz") as trace:
        assert trace["classes"].tolist() == [*range(6)]
        (weight,) = (found for name, found in weights(run).items() if name in ("head.frame", "head.learned_weight"))
        np.testing.assert_allclose(trace["weights"][-1], weight / np.linalg.norm(weight, axis=1, keepdims=True), atol=1e-6)
        # On a sphere of radius 1 around the global mean.
        apart = trace["samples"][-1][:, None] - trace["samples"][-1]
        assert 1 < np.linalg.norm(apart, axis=2).max() <= 2 + 1e-5


def test_curves_for_tensorboard(tmp_path):
    run = train(replace(FREE, epochs=1), placed(tmp_path, tensorboard=True))
    assert any(file.name.startswith("events.out.tfevents") for file in run.path.iterdir())


def test_every_record_is_handed_on_as_it_is_made(tmp_path):
    seen = []
    run = train(replace(FREE, epochs=2), placed(tmp_path), on_record=seen.append)
    assert [record.running["loss"] for record in seen] == pytest.approx([record["running"]["loss"] for record in records(run)])
    train(replace(FREE, epochs=3), placed(tmp_path, lengthen=True), on_record=seen.append)
    assert [record.epoch for record in seen] == [1, 2, 3]
