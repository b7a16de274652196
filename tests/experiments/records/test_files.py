import errno
import os
import stat
from pathlib import Path

import pytest

from guided_collapse.experiments.records.files import (
    NotWrittenError,
    remove_leftovers,
    write_bytes,
    write_json,
    write_text,
    written_whole,
)
from tests.experiments.training.runs import full_disk


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})

    def write_half():
        with written_whole(file) as beside:
            beside.write_text("half")
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        write_half()
    assert file.read_text() == '{\n  "a": 1\n}\n'
    assert names(tmp_path) == ["a.json"]


def test_no_value_that_json_cannot_hold(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert names(tmp_path) == []


def test_what_a_killed_write_left_is_removed(tmp_path):
    (tmp_path / ".last.ckpt.0123.part").write_text("half")
    write_text(tmp_path / "kept.txt", "whole")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["kept.txt"]


@pytest.mark.parametrize(("mask", "mode"), [(0o027, 0o640), (0o002, 0o664)])
def test_files_have_the_permissions_that_the_umask_gives(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == mode


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_is_told_with_the_file_and_a_way_out_and_leaves_the_old_one(step, tmp_path, monkeypatch):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"old")
    place = {"write": (Path, "write_bytes"), "fsync": (os, "fsync"), "replace": (Path, "replace")}[step]
    with monkeypatch.context() as patch:
        patch.setattr(*place, full_disk)
        with pytest.raises(NotWrittenError, match=r"model.safetensors could not be written: No space left.* Make room") as caught:
            write_bytes(file, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert (file.read_bytes(), names(tmp_path)) == (b"old", [file.name])
