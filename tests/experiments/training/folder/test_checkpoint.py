import os

import pytest
import torch

from guided_collapse.experiments.training.folder.checkpoint import load_checkpoint, save_checkpoint


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "one bit":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(b"")


def test_nothing_to_load(tmp_path):
    assert load_checkpoint(tmp_path) is None


def test_the_newest_is_loaded_and_the_one_before_is_kept(tmp_path):
    for epoch in (1, 2, 3):
        save_checkpoint(tmp_path, {"epoch": epoch, "tensor": torch.full((3,), float(epoch))})
    assert load_checkpoint(tmp_path).state["epoch"] == 3
    (tmp_path / "last.ckpt").unlink()
    assert load_checkpoint(tmp_path).state["tensor"].tolist() == [2.0, 2.0, 2.0]
    assert [file.name for file in tmp_path.iterdir()] == ["previous.ckpt"]


@pytest.mark.parametrize("how", ["cut", "one bit", "emptied"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(how, tmp_path):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, {"epoch": epoch})
    damage(tmp_path / "last.ckpt", how)
    with pytest.warns(RuntimeWarning, match=r"last.ckpt is damaged"):
        assert load_checkpoint(tmp_path).state["epoch"] == 1
    damage(tmp_path / "previous.ckpt", how)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert load_checkpoint(tmp_path) is None


def test_a_write_that_fails_keeps_both(tmp_path, monkeypatch):
    for epoch in (1, 2):
        save_checkpoint(tmp_path, {"epoch": epoch})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, {"epoch": 3})
    assert load_checkpoint(tmp_path).state["epoch"] == 2
    assert not list(tmp_path.glob(".*.part"))
