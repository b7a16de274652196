import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from guided_collapse.experiments.files import NotWrittenError, atomic_write, write_bytes, write_json
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import RunFolder
from tests.experiments.runs import FREE, full_disk, placed


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"a": 1})

    def write_half():
        with atomic_write(file) as beside:
            beside.write_text("half")
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        write_half()
    assert file.read_text() == '{\n  "a": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "b.json", {"a": float("nan")})
    assert names(tmp_path) == ["a.json"]


@pytest.mark.parametrize("place", [(Path, "write_bytes"), (os, "fsync"), (Path, "replace")], ids=["write", "fsync", "replace"])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(place, tmp_path, monkeypatch):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(*place, full_disk)
        with pytest.raises(NotWrittenError, match=r"model.safetensors could not be written: No space left.* Free some") as caught:
            write_bytes(file, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert (file.read_bytes(), names(tmp_path)) == (b"old", [file.name])


OCCUPY = """
import sys
from pathlib import Path
from guided_collapse.experiments.files import locked
with locked(Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process in the folder of a run, which ends with its standard input."""
    folder = RunFolder.of(FREE, tmp_path).path
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", OCCUPY, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in\n"
        yield process
        process.kill()


def test_a_run_of_another_process_is_left_alone(other, tmp_path):
    folder = RunFolder.of(FREE, tmp_path).path
    half = folder / ".last.ckpt.0123.part"
    half.write_text("the other process is writing this")
    with pytest.raises(RuntimeError, match=rf"another process is using {folder}\. Wait for it"):
        train(FREE, placed(tmp_path))
    assert names(folder) == [half.name, ".lock"]
    train(replace(FREE, seed=1, epochs=1), placed(tmp_path))


@pytest.mark.parametrize("end", ["its own", "kill"])
def test_the_end_of_the_other_process_frees_the_folder(other, end, tmp_path):
    other.kill() if end == "kill" else other.stdin.close()
    other.wait()
    train(replace(FREE, epochs=1), placed(tmp_path))
