"""A run that is killed at any rename, synchronization, removal, link or opening of a file, and what is left of it.

What a kill leaves is the folder as it is at that moment: no clean-up runs after it, and what was not yet written is lost. So each
run goes on undisturbed, and its folder is copied before and after every such operation. Each copy is what a killed run leaves.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from guided_collapse.experiments.export import export_run
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import RunFolder, run_status
from tests.experiments.runs import DIGITS, TINY, assert_same, placed, weights

pytestmark = pytest.mark.slow

OPERATIONS = [(os, name) for name in ("rename", "replace", "fsync", "unlink", "remove", "link", "mkdir")] + [(Path, "open")]
LONG = replace(TINY, batch_size=6)
SHORT = replace(LONG, epochs=2)

# The suite takes a few crash points, `make crash` all of them.
some_and_all = pytest.mark.parametrize("every", [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.crash)])


class CrashPoints:
    """Every state of a folder that a kill can leave, each once."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder, self.copies = folder, copies
        self.states: dict[tuple[tuple[str, bytes], ...], Path] = {}

    def take(self) -> None:
        state = contents(self.folder)
        if state not in self.states:
            self.states[state] = self.copies / str(len(self.states))
            shutil.copytree(self.folder, self.states[state])


def contents(folder: Path) -> tuple[tuple[str, bytes], ...]:
    """Names and bytes of all files, without what is random in the names of those that are being written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return tuple((".part" if path.suffix == ".part" else str(path.relative_to(folder)), path.read_bytes()) for path in files)


@contextmanager
def crash_points(folder: Path, copies: Path) -> Iterator[CrashPoints]:
    """Collects the states of the folder around every operation on files that is called inside."""
    points = CrashPoints(folder, copies)
    taking = False

    def around(real):
        def operation(*arguments, **options):
            nonlocal taking
            if taking:
                return real(*arguments, **options)
            try:
                taking = True
                points.take()
                result = real(*arguments, **options)
                points.take()
            finally:
                taking = False
            return result

        return operation

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in OPERATIONS:
            patch.setattr(owner, name, around(getattr(owner, name)))
        yield points


def chosen(points: CrashPoints, every: int) -> list[Path]:
    """Every n-th state, and the last."""
    states = list(points.states.values())
    return [*states[:-1:every], states[-1]]


def copied(state: Path, where: Path) -> Path:
    """Returns a copy to continue from, because several tests share the states."""
    target = where / state.name
    shutil.copytree(state, target)
    return target


def assert_goes_on_to(whole: RunFolder, out: Path, *, lengthen: bool = False) -> None:
    """Asserts that a killed run resumes to the same result, bit for bit, and leaves no partial file."""
    torch.manual_seed(1234)  # what the killed process had drawn is gone
    run = train(LONG, placed(out, checkpoint_seconds=0.0, lengthen=lengthen))
    assert not list(run.path.glob(".*.part"))
    assert_same(run, whole)
    assert run_status(run.path).state == "finished"


def is_model(path: Path, run: RunFolder) -> bool:
    """Whether a file holds the finished model of the run."""
    mine, others = load_file(path), weights(run)
    return mine.keys() == others.keys() and all(np.array_equal(array, others[name]) for name, array in mine.items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(LONG, placed(tmp_path_factory.mktemp("whole"), checkpoint_seconds=0.0))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run from its beginning to its end."""
    root = tmp_path_factory.mktemp("killed")
    (root / "out").mkdir()
    with crash_points(root / "out", root / "states") as points:
        train(LONG, placed(root / "out", checkpoint_seconds=0.0))
    return points


@pytest.fixture(scope="module")
def killed_longer(tmp_path_factory):
    """A finished run that is made longer."""
    root = tmp_path_factory.mktemp("longer")
    train(SHORT, placed(root / "out", checkpoint_seconds=0.0))
    with crash_points(root / "out", root / "states") as points:
        train(LONG, placed(root / "out", checkpoint_seconds=0.0, lengthen=True))
    return points


def test_every_save_has_crash_points(killed, killed_longer):
    assert len(killed.states) > LONG.epochs
    assert len(killed_longer.states) > LONG.epochs - SHORT.epochs


@some_and_all
def test_a_run_killed_at_any_point_goes_on_to_the_same_result(every, killed, whole, tmp_path):
    for state in chosen(killed, every):
        assert_goes_on_to(whole, copied(state, tmp_path))


@some_and_all
def test_a_lengthening_killed_at_any_point_goes_on_to_the_same_result(every, killed_longer, whole, tmp_path):
    for state in chosen(killed_longer, every):
        assert_goes_on_to(whole, copied(state, tmp_path), lengthen=True)


def test_a_lengthening_killed_at_any_point_has_a_finished_model(killed_longer, whole, tmp_path):
    short = train(SHORT, placed(tmp_path))
    for state in killed_longer.states.values():
        folder = RunFolder.of(LONG, state).path
        models = [path for path in folder.glob("*.safetensors") if not path.name.startswith(".")]
        assert any(is_model(path, short) or is_model(path, whole) for path in models), list(folder.iterdir())


def test_an_export_killed_at_any_point_leaves_the_file_before_or_the_new_one(tmp_path):
    run = train(replace(DIGITS, epochs=1, batch_size=1024), placed(tmp_path))
    target = tmp_path / "exported" / "model.safetensors"
    target.parent.mkdir()
    target.write_bytes(b"the file before")
    with crash_points(target.parent, tmp_path / "states") as points:
        export_run(run, target)
    left = {(state / target.name).read_bytes() for state in points.states.values()}
    assert left == {b"the file before", target.read_bytes()}
    assert contents(target.parent) == ((target.name, target.read_bytes()),)
