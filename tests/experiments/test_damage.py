"""Folders of runs in which a file is damaged: every command names the damage, or repairs it completely."""

import shutil
import warnings
from dataclasses import replace

import pytest

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.records import read_records
from guided_collapse.experiments.run import RunFolder, run_status
from tests.experiments.runs import DIGITS, TINY, assert_same, contents, interrupted_before, placed

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("default::RuntimeWarning")]

LONGER = replace(TINY, epochs=6)
IMAGES = replace(DIGITS, epochs=1, trace=True)
KINDS = ("cut", "emptied", "deleted", "of another run", "another kind", "a list", "bit 0.01", "bit 0.4", "bit 0.98")
FILES = ("config.json", "metrics.jsonl", "margins.npz", "trace.npz", "last.ckpt", "model.safetensors")
# For each state: the run that it must become, its files that are damaged, and the command that is run then.
STATES = {
    "finished": ("finished", FILES, ("resume", "report")),
    "interrupted": ("finished", ("config.json", "metrics.jsonl", "last.ckpt", "previous.ckpt"), ("resume",)),
    "lengthened": ("longer", (*FILES, "previous.ckpt"), ("resume",)),
    "images": ("images", FILES, ("export",)),
}
CASES = [(command, state, name) for state, (_, names, commands) in STATES.items() for command in commands for name in names]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Runs in each state, whole."""
    out = tmp_path_factory.mktemp("prepared")
    train(TINY, placed(out / "finished"))
    train(LONGER, placed(out / "longer"))
    train(replace(TINY, scale=3.0), placed(out / "other"))
    train(IMAGES, placed(out / "images"))
    interrupted_before(3, TINY, placed(out / "interrupted", checkpoint_seconds=0.0))
    train(TINY, placed(out / "lengthened"))
    interrupted_before(6, LONGER, placed(out / "lengthened", checkpoint_seconds=0.0, lengthen=True))
    return out


def damage(file, how, other):
    content = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
        return
    if how.startswith("bit"):
        content[round(float(how.split()[1]) * (len(content) - 1))] ^= 4
    of_other = other / (file.name if (other / file.name).exists() else "last.ckpt")
    new = {
        "cut": content[: len(content) // 2],
        "emptied": b"",
        "of another run": of_other.read_bytes(),
        "another kind": (other / ("metrics.jsonl" if file.suffix == ".npz" else "margins.npz")).read_bytes(),
        "a list": b"[1, 2, 3]\n",
    }
    file.write_bytes(new.get(how, content))


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("command", "state", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_damaged_file_is_named_or_repaired(command, state, name, how, prepared, tmp_path, capsys):
    shutil.copytree(prepared / state, tmp_path / "out")
    (config,) = (tmp_path / "out").rglob("config.json")
    (whole,) = (prepared / STATES[state][0]).rglob("config.json")
    (other,) = (prepared / "other").rglob("config.json")
    run = RunFolder(config.parent)
    damage(run.path / name, how, other.parent)
    before = contents(run.path)
    is_checkpoint = name.endswith(".ckpt")
    if command == "report":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_checkpoint:  # no part of the result
                assert [found.state for found in read_records([tmp_path / "out"]).runs] == ["finished"]
                return
            with pytest.raises(ValueError, match=rf"1 could not be used, for example .*{name}"):
                read_records([tmp_path / "out"])
        return
    if command == "export":
        target = tmp_path / "exported.safetensors"
        status = main(["export", str(run.path), "--to", str(target)])
        assert (status == 0, target.exists()) == (is_checkpoint, is_checkpoint)
    else:
        status = main(["resume", str(run.path), "--accelerator", "cpu", "--quiet"])
        if status == 0:
            assert_same(run, RunFolder(whole.parent))
            assert run_status(run.path).state == "finished"
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    if status != 0:
        assert name in said
        assert contents(run.path) == before
