import errno
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest

from guided_collapse.experiments.training.folder import lock
from guided_collapse.experiments.training.folder.lock import locked
from guided_collapse.experiments.training.loop import train
from tests.experiments.training.runs import FREE, placed

OCCUPY = """
import sys
from pathlib import Path
from guided_collapse.experiments.training.folder.lock import locked
with locked(Path(sys.argv[1])):
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
    with pytest.raises(RuntimeError, match=rf"another process is at work in {folder} \(process {other.pid} on .+\)\. Wait"):
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
        monkeypatch.setattr(lock, "fcntl", None)
    else:
        monkeypatch.setattr(lock.fcntl, "flock", refuse)
    assert train(FREE, placed(tmp_path)).is_finished


def test_an_error_inside_frees_it_too(tmp_path):
    for _ in range(2):
        with pytest.raises(KeyError), locked(tmp_path):
            raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_owner_removes_while_another_asks_lets_no_two_in(tmp_path, monkeypatch):
    """A second process opens the lock of the first, which ends before the second has locked it; then a third comes."""
    first, second = ExitStack(), ExitStack()
    first.enter_context(locked(tmp_path))
    flock = lock.fcntl.flock

    def first_ends_before(*given):
        monkeypatch.undo()
        first.close()
        flock(*given)

    monkeypatch.setattr(lock.fcntl, "flock", first_ends_before)
    with second:
        second.enter_context(locked(tmp_path))
        with pytest.raises(RuntimeError, match="another process is at work"), locked(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_start_at_once_never_two_are_inside(tmp_path):
    interval = sys.getswitchinterval()
    inside, entered, together, start = [], [], [], threading.Barrier(4)

    def hammer(name):
        start.wait()
        for _ in range(1000):
            try:
                with locked(tmp_path):
                    inside.append(name)
                    time.sleep(0)
                    if len(inside) > 1:
                        together.append(list(inside))
                    entered.append(name)
                    inside.remove(name)
            except RuntimeError:
                pass

    threads = [threading.Thread(target=hammer, args=(name,)) for name in range(4)]
    try:
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert entered
    assert together == []


def test_the_lock_of_a_process_that_was_killed_is_no_obstacle(tmp_path):
    (tmp_path / ".lock").write_text("stale")
    with locked(tmp_path):
        pass
