import stat

import pytest

from guided_collapse.training.files import remove_leftovers, write_json, write_text, written_whole


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


def test_files_have_the_usual_permissions(tmp_path):
    write_text(tmp_path / "a.txt", "a")
    (tmp_path / "b.txt").write_text("b")
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == stat.S_IMODE((tmp_path / "b.txt").stat().st_mode)
