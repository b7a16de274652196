"""What a run resumes from: its checkpoints, and files that are damaged, missing, or not the run's."""

import hashlib
import io
import os
import pickle
from dataclasses import replace

import pytest
import torch

from guided_collapse.experiments.errors import DamageError, RequestError
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import EpochRecord, RunFolder, load_checkpoint, run_status, save_checkpoint
from tests.experiments.report.made_up import facts
from tests.experiments.runs import TINY, assert_same, contents, full_disk, interrupted_before, placed, weights


def save(folder, epoch, **state):
    save_checkpoint(folder, facts(), [EpochRecord(number) for number in range(1, epoch + 1)], state)


def damage(path, how):
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "edited": content, "emptied": b""}[how])


def interrupted(out):
    return interrupted_before(4, TINY, placed(out, checkpoint_seconds=0.0))


def test_the_newest_checkpoint_is_loaded_and_the_one_before_is_kept(tmp_path):
    assert load_checkpoint(tmp_path) is None
    for epoch in (1, 2, 3):
        save(tmp_path, epoch, tensor=torch.full((3,), float(epoch)))
    found = load_checkpoint(tmp_path)
    assert (found.facts, len(found.records), found.file.name) == (facts(), 3, "last.ckpt")
    (tmp_path / "last.ckpt").unlink()
    assert load_checkpoint(tmp_path).state["tensor"].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("how", ["cut", "edited", "emptied"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(how, tmp_path):
    for epoch in (1, 2):
        save(tmp_path, epoch)
    damage(tmp_path / "last.ckpt", how)
    with pytest.warns(RuntimeWarning, match=r"last.ckpt is damaged"):
        assert len(load_checkpoint(tmp_path).records) == 1
    damage(tmp_path / "previous.ckpt", how)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert load_checkpoint(tmp_path) is None


def test_a_checkpoint_runs_no_code(tmp_path):
    buffer = io.BytesIO()
    torch.save({"model": os.system}, buffer)
    (tmp_path / "last.ckpt").write_bytes(hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue())
    with pytest.raises(pickle.UnpicklingError, match=r"[Ww]eights"):
        load_checkpoint(tmp_path)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run, other = interrupted(tmp_path), train(replace(TINY, gain=1.0), placed(tmp_path / "other"))
    (run.path / "last.ckpt").write_bytes((other.path / "last.ckpt").read_bytes())
    before = contents(run.path)
    with pytest.raises(DamageError, match=r"last.ckpt must be .* of the run in config.json; .*: gain is 1.0, not 10.0"):
        train(TINY, placed(tmp_path))
    assert contents(run.path) == before


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("how", ["deleted", "edited"])
@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "margins.npz", "trace.npz", "model.safetensors"])
def test_a_damaged_file_of_a_finished_run_is_rebuilt_or_without_a_checkpoint_left_alone(name, how, tmp_path):
    run = train(TINY, placed(tmp_path / "out"))
    model = (run.path / "model.safetensors").read_bytes()
    damage(run.path / name, how)
    assert run_status(run.path).state == "damaged"
    assert name in run_status(run.path).reason
    before = contents(run.path)
    checkpoint = before.pop("last.ckpt")
    (run.path / "last.ckpt").unlink()
    if name != "model.safetensors" or how != "deleted":
        with pytest.raises(DamageError, match="Put it back" if name == "config.json" else "only from last.ckpt"):
            train(TINY, placed(tmp_path / "out"))
        assert contents(run.path) == before
    (run.path / "last.ckpt").write_bytes(checkpoint)
    with pytest.warns(RuntimeWarning, match="using the copy" if name == "config.json" else f"{name} .*; rebuilding it"):
        train(TINY, placed(tmp_path / "out"))
    assert_same(run, train(TINY, placed(tmp_path / "whole")))
    assert (run.path / "model.safetensors").read_bytes() == model
    assert run_status(run.path).state == "finished"


def test_a_lost_configuration_is_taken_from_the_checkpoint(tmp_path):
    run = interrupted(tmp_path)
    (run.path / "config.json").unlink()
    with pytest.warns(RuntimeWarning, match="using the copy in last.ckpt"), pytest.raises(RequestError, match=r"scale is 5"):
        train(replace(TINY, scale=9.0), placed(tmp_path))


def test_a_run_with_a_trace_is_the_same_run_without_one_but_gets_none_later(tmp_path):
    run = train(TINY, placed(tmp_path))
    before = contents(run.path)
    train(replace(TINY, trace=False), placed(tmp_path))
    assert contents(run.path) == before
    bare = train(replace(TINY, seed=1, trace=False), placed(tmp_path))
    assert not (bare.path / "trace.npz").exists()
    with pytest.raises(RequestError, match="trace is False, not True"):
        train(replace(TINY, seed=1), placed(tmp_path))


def test_a_run_that_was_killed_in_its_first_epoch_or_lost_its_checkpoints_starts_again(tmp_path):
    run = interrupted_before(1, TINY, placed(tmp_path / "cut"))
    assert set(contents(run.path)) == {"config.json", "failed.json"}
    assert_same(train(TINY, placed(tmp_path / "cut")), train(TINY, placed(tmp_path / "whole")))
    run = interrupted(tmp_path / "lost")
    for name in ("last.ckpt", "previous.ckpt"):
        (run.path / name).unlink()
    assert_same(train(TINY, placed(tmp_path / "lost")), RunFolder.of(TINY, tmp_path / "whole"))


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
    with pytest.raises(RequestError, match="must be the folder of a run"):
        RunFolder(tmp_path).facts()
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    with pytest.raises(DamageError, match="Put it back, or move the folder away"):
        RunFolder(tmp_path).facts()
