import errno
import subprocess
import sys
from dataclasses import replace

import pytest

from guided_collapse.training import occupation
from guided_collapse.training.loop import train
from guided_collapse.training.occupation import occupied
from tests.training.runs import FREE, placed

OCCUPY = """
import sys
from pathlib import Path
from guided_collapse.training.occupation import occupied
with occupied(Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process in the folder of a run, which ends with its standard input."""
    folder = tmp_path / FREE.experiment / FREE.head / "seed-0"
    folder.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", OCCUPY, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "in\n"
        yield process
        process.kill()


def test_a_run_of_another_process_is_left_alone(other, tmp_path):
    folder = tmp_path / FREE.experiment / FREE.head / "seed-0"
    half = folder / ".last.ckpt.0123.part"
    half.write_text("the other process is writing this")
    with pytest.raises(RuntimeError, match=f"another process is at work in {folder}"):
        train(FREE, placed(tmp_path))
    assert {file.name for file in folder.iterdir()} == {".lock", half.name}
    train(replace(FREE, seed=1), placed(tmp_path))


@pytest.mark.parametrize("end", ["its own", "kill"])
def test_its_end_frees_the_folder(other, end, tmp_path):
    other.kill() if end == "kill" else other.stdin.close()
    other.wait()
    assert train(FREE, placed(tmp_path)).is_finished


@pytest.mark.parametrize("without", ["the system", "the file system"])
def test_without_locks_a_run_runs(without, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    if without == "the system":
        monkeypatch.setattr(occupation, "fcntl", None)
    else:
        monkeypatch.setattr(occupation.fcntl, "flock", refuse)
    assert train(FREE, placed(tmp_path)).is_finished


def test_an_error_inside_frees_it_too(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), occupied(tmp_path):
            raise KeyError
    assert list(tmp_path.iterdir()) == []
