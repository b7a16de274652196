"""What a run resumes from: its checkpoints, and files that are damaged, missing, or not the run's."""

import json
import os
import warnings
from dataclasses import replace

import pytest
import torch

from guided_collapse.experiments.errors import DamageError, RequestError
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import RunFolder, load_checkpoint, save_checkpoint
from guided_collapse.experiments.run_format import EpochRecord, run_status
from tests.experiments.report.made_up import facts
from tests.experiments.runs import TINY, assert_same, contents, full_disk, interrupted_before, placed, weights


def save(folder, epoch, **state):
    save_checkpoint(folder, facts(), [EpochRecord(number) for number in range(1, epoch + 1)], state)


def damage(path, how):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "one bit": content, "emptied": b""}[how])


def test_the_newest_checkpoint_is_loaded_and_the_one_before_is_kept(tmp_path):
    assert load_checkpoint(tmp_path) is None
    for epoch in (1, 2, 3):
        save(tmp_path, epoch, tensor=torch.full((3,), float(epoch)))
    found = load_checkpoint(tmp_path)
    assert (found.facts, len(found.records), found.file.name) == (facts(), 3, "last.ckpt")
    (tmp_path / "last.ckpt").unlink()
    assert load_checkpoint(tmp_path).state["tensor"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("how", ["cut", "one bit", "emptied"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(how, tmp_path):
    for epoch in (1, 2):
        save(tmp_path, epoch)
    damage(tmp_path / "last.ckpt", how)
    with pytest.warns(RuntimeWarning, match=r"last.ckpt is damaged"):
        assert len(load_checkpoint(tmp_path).records) == 1
    damage(tmp_path / "previous.ckpt", how)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert load_checkpoint(tmp_path) is None


def test_a_write_that_fails_keeps_both_checkpoints(tmp_path, monkeypatch):
    for epoch in (1, 2):
        save(tmp_path, epoch)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 3)
    assert len(load_checkpoint(tmp_path).records) == 2
    assert not list(tmp_path.glob(".*.part"))


def interrupted(out):
    return interrupted_before(4, TINY, placed(out, checkpoint_seconds=0.0))


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


CHANGES = {
    "no model": without("model"),
    "no optimizer": without("optimizer"),
    "no random numbers": without("random"),
    "no trace": without("trace"),
    "tensors of another model": lambda state: state | {"model": {name: torch.zeros(2, 3) for name in state["model"]}},
    "names of another model": lambda state: state | {"model": {"weight": torch.zeros(3)}},
    "numbers as a model": lambda state: state | {"model": dict.fromkeys(state["model"], 3)},
    "another optimizer": lambda state: state | {"optimizer": {"state": {}, "param_groups": []}},
    "too few random numbers": lambda state: state | {"random": torch.zeros(3, dtype=torch.uint8)},
    "half a trace": lambda state: state | {"trace": {"epochs": [1]}},
    "facts of no run": lambda state: state | {"config.json": "{}"},
    "a gap in the records": lambda state: state | {"metrics.jsonl": '{"epoch": 1}\n{"epoch": 3}\n'},
    "no records": lambda state: state | {"metrics.jsonl": ""},
    "too many records": lambda state: state | {"metrics.jsonl": "".join(f'{{"epoch": {n}}}\n' for n in range(1, 8))},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_with_other_contents_is_named_and_nothing_is_changed(change, tmp_path, monkeypatch):
    run = interrupted(tmp_path)
    found = load_checkpoint(run.path)
    (run.path / "last.ckpt").unlink()
    save_as = torch.save
    monkeypatch.setattr(torch, "save", lambda state, buffer: save_as(change(state), buffer))
    save_checkpoint(run.path, found.facts, found.records, found.state)
    monkeypatch.undo()
    before = contents(run.path)
    with pytest.raises(DamageError, match=r"last\.ckpt must be a checkpoint of the run in its folder"):
        train(TINY, placed(tmp_path))
    assert contents(run.path) == before


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run, other = interrupted(tmp_path), train(replace(TINY, gain=1.0), placed(tmp_path / "other"))
    (run.path / "last.ckpt").write_bytes((other.path / "last.ckpt").read_bytes())
    before = contents(run.path)
    with pytest.raises(DamageError, match=r"last.ckpt .*config.json has another configuration: gain is 1.0, not 10.0"):
        train(TINY, placed(tmp_path))
    assert contents(run.path) == before


@pytest.mark.parametrize("how", ["deleted", "cut", "edited"])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_lost_file_of_an_interrupted_run_is_restored_from_the_checkpoint(name, how, tmp_path):
    run = interrupted(tmp_path / "cut")
    file = run.path / name
    text = file.read_text()
    if how == "deleted":
        file.unlink()
    else:
        file.write_text(text[: len(text) // 2] if how == "cut" else text.replace("4", "5"))
    if name == "config.json":
        with pytest.warns(RuntimeWarning, match="using the copy in last.ckpt"), pytest.raises(RequestError, match=r"scale is 5"):
            train(replace(TINY, scale=9.0), placed(tmp_path / "cut"))
        with pytest.warns(RuntimeWarning, match="using the copy in last.ckpt"):
            train(TINY, placed(tmp_path / "cut"))
    else:
        train(TINY, placed(tmp_path / "cut"))
    assert_same(run, train(TINY, placed(tmp_path / "whole")))
    assert run_status(run.path).state == "finished"


@pytest.mark.parametrize("how", ["deleted", "edited"])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "margins.npz", "trace.npz", "model.safetensors"])
def test_a_damaged_file_of_a_finished_run_is_rebuilt_or_without_a_checkpoint_left_alone(name, how, tmp_path):
    run, whole = train(TINY, placed(tmp_path / "out")), train(TINY, placed(tmp_path / "whole"))
    if how == "deleted":
        (run.path / name).unlink()
    else:
        content = bytearray((run.path / name).read_bytes())
        content[-20] ^= 1
        (run.path / name).write_bytes(content)
    assert run_status(run.path).state == "damaged"
    assert name in run_status(run.path).reason
    before = contents(run.path)
    checkpoint = before.pop("last.ckpt")
    (run.path / "last.ckpt").unlink()
    if name != "model.safetensors" or how != "deleted":
        with pytest.raises(DamageError, match="Put it back" if name == "config.json" else "only from its last checkpoint"):
            train_quietly(tmp_path / "out")
        assert contents(run.path) == before
    (run.path / "last.ckpt").write_bytes(checkpoint)
    with pytest.warns(RuntimeWarning, match="using the copy" if name == "config.json" else f"{name} .*; rebuilding it"):
        train(TINY, placed(tmp_path / "out"))
    assert_same(run, whole)
    assert run_status(run.path).state == "finished"


def train_quietly(out):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(TINY, placed(out))


def test_a_finished_file_is_rebuilt_bit_for_bit(tmp_path):
    run = train(TINY, placed(tmp_path))
    before = contents(run.path)
    (run.path / "model.safetensors").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match=r"model.safetensors is not as it was when the run finished, by .*; rebuilding"):
        train(TINY, placed(tmp_path))
    assert contents(run.path)["model.safetensors"] == before["model.safetensors"]


def test_a_run_without_a_checkpoint_starts_again_and_loses_no_record(tmp_path):
    run = interrupted(tmp_path / "cut")
    for name in ("last.ckpt", "previous.ckpt"):
        (run.path / name).unlink()
    before = (run.path / "metrics.jsonl").read_bytes()
    with pytest.warns(RuntimeWarning, match=r"starts again. Its old records are in .*metrics.before.jsonl"):
        assert_same(train(TINY, placed(tmp_path / "cut")), train(TINY, placed(tmp_path / "whole")))
    assert (run.path / "metrics.before.jsonl").read_bytes() == before


def test_a_run_that_was_killed_in_its_first_epoch_starts_again(tmp_path):
    run = interrupted_before(1, TINY, placed(tmp_path / "cut"))
    assert set(contents(run.path)) == {"config.json", "failed.json"}
    assert_same(train(TINY, placed(tmp_path / "cut")), train(TINY, placed(tmp_path / "whole")))


def test_a_run_that_is_extended_and_interrupted_keeps_its_finished_model(tmp_path, monkeypatch):
    run = train(replace(TINY, epochs=2), placed(tmp_path))
    before = weights(run)
    for epoch in (3, 4):
        interrupted_before(epoch, TINY, placed(tmp_path, checkpoint_seconds=0.0, lengthen=True))
        assert run_status(run.path).state == "failed"
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_arrays", full_disk)
        with pytest.raises(OSError, match="No space"):
            train(TINY, placed(tmp_path))
    assert all((tensor == weights(run)[name]).all() for name, tensor in before.items())
    assert_same(train(TINY, placed(tmp_path)), train(TINY, placed(tmp_path / "whole")))


def test_a_folder_that_is_no_run_is_a_wrong_request(tmp_path):
    assert RunFolder(tmp_path).configuration() is None
    with pytest.raises(RequestError, match="must be the folder of a run"):
        RunFolder(tmp_path).facts()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other"}))
    with pytest.raises(DamageError, match="Put it back, or move the folder away"):
        RunFolder(tmp_path).facts()
