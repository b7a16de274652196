"""Folders of runs in which a file is damaged: every damage is named, or mended so that nothing of it is left."""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.comparison import compare, comparison_table
from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.training import loop
from guided_collapse.experiments.training.export import inference_model
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.training.loop import train
from tests.experiments.training.runs import DIGITS, FREE, assert_same, placed

TINY = replace(FREE, num_classes=3, num_samples=12, feature_dim=4, batch_size=12, epochs=3, measure_every=1, trace=True)
SMALL = replace(DIGITS, epochs=1, trace=True)
OTHER = replace(TINY, scale=3.0)
BITS = tuple(f"bit {place}" for place in (0.01, 0.4, 0.98))
KINDS = ("cut", "emptied", "deleted", "of another run", "another kind", "a list", *BITS)


class InterruptionError(Exception):
    pass


def interrupted_before(epoch, configuration, placement):
    """A run that comes to an end before it is told to."""
    train_epoch = loop.Training.train_epoch

    def interrupted(training, number, *given):
        if number == epoch:
            raise InterruptionError
        return train_epoch(training, number, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "train_epoch", interrupted)
        with pytest.raises(InterruptionError):
            train(configuration, placement)
    return RunFolder.of(configuration, placement.out)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Runs in each state, whole."""
    out = tmp_path_factory.mktemp("prepared")
    longer = replace(TINY, epochs=5)
    train(TINY, placed(out / "finished"))
    train(longer, placed(out / "longer"))
    train(OTHER, placed(out / "other"))
    train(SMALL, placed(out / "images"))
    interrupted_before(3, TINY, placed(out / "interrupted", checkpoint_seconds=0.0))
    train(TINY, placed(out / "lengthened"))
    interrupted_before(5, longer, placed(out / "lengthened", checkpoint_seconds=0.0, lengthen=True))
    return out


def damage(file, how, other):
    content = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
        return
    if how.startswith("bit"):
        content[round(float(how.split()[1]) * (len(content) - 1))] ^= 4
    new = {
        "cut": content[: len(content) // 2],
        "emptied": b"",
        "of another run": (other / file.name).read_bytes() if (other / file.name).exists() else (other / "last.ckpt").read_bytes(),
        "another kind": (other / ("margins.npz" if file.suffix != ".npz" else "metrics.jsonl")).read_bytes(),
        "a list": b"[1, 2, 3]\n",
    }
    file.write_bytes(new.get(how, content))


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def arrays(file):
    with np.load(file) as found:
        return {name: found[name].tolist() for name in found.files}


def facts(run):
    """All but what no two runs share."""
    found = json.loads(run.config_file.read_text())
    return {name: value for name, value in found.items() if name not in ("started", "sha256")}


def check_resume(run, whole):
    status = main(["resume", str(run.path), "--accelerator", "cpu", "--quiet"])
    if status == 0:
        assert_same(run, whole)
        assert facts(run) == facts(whole)
        for name in ("margins.npz", "trace.npz"):
            assert arrays(run.path / name) == arrays(whole.path / name)
        assert run.is_finished
    return status


def check_compare(run, whole):
    configuration = whole.configuration()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        comparison = compare(configuration, [configuration.head], [0], placed(run.path.parents[2]))
        (expected,) = (compare(configuration, [configuration.head], [0], placed(whole.path.parents[2])).finished,)
    if comparison.failed:
        ((_, reason),) = comparison.failed
        print(reason)
        return 1
    assert comparison_table(comparison) == comparison_table(replace(comparison, finished=expected))
    assert_same(run, whole)
    return 0


def check_export(run, whole):
    target = run.path.parents[2] / "exported.safetensors"
    status = main(["export", str(run.path), "--to", str(target)])
    assert target.exists() == (status == 0)
    if status == 0:
        expected = inference_model(whole).state_dict()
        assert {name: tensor.tolist() for name, tensor in load_file(target).items()} == {
            name: tensor.tolist() for name, tensor in expected.items()
        }
    return status


def check_report(run, whole):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found, expected = (read_records([folder.path]) for folder in (run, whole))
        except ValueError as error:
            print(error)
            return 1
    print(*found.skipped, sep="\n")
    (mine,), (theirs,) = found.runs, expected.runs
    same = (mine.state, mine.configuration, mine.hardware) == (theirs.state, theirs.configuration, theirs.hardware)
    for name in ("values", "margins"):
        ours, others = (getattr(one.epochs if name == "values" else one, name) for one in (mine, theirs))
        same = same and ours.keys() == others.keys() and all(np.array_equal(ours[key], others[key], equal_nan=True) for key in ours)
    return 0 if same else 1  # what is another one has to be named


COMMANDS = {"resume": check_resume, "compare": check_compare, "export": check_export, "report": check_report}
BESIDE = ("config.json", "metrics.jsonl", "margins.npz", "trace.npz", "last.ckpt", "model.safetensors")
# For each state: what it is to become, its files that are damaged, and the commands that are tried then.
STATES = {
    "finished": ("finished", BESIDE, ("resume", "compare", "report")),
    "interrupted": ("finished", ("config.json", "metrics.jsonl", "last.ckpt", "previous.ckpt"), ("resume",)),
    "lengthened": ("longer", (*BESIDE, "previous.ckpt"), ("resume",)),
    "images": ("images", ("config.json", "metrics.jsonl", "last.ckpt", "model.safetensors"), ("export",)),
}
CASES = [(command, state, name) for state, (_, names, commands) in STATES.items() for command in commands for name in names]


@pytest.mark.thorough
@pytest.mark.filterwarnings("default::RuntimeWarning")
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize(("command", "state", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_damaged_file_is_named_or_mended(command, state, name, how, prepared, tmp_path, capsys):
    shutil.copytree(prepared / state, tmp_path / "out")
    (config,) = (tmp_path / "out").rglob("config.json")
    (whole,) = (prepared / STATES[state][0]).rglob("config.json")
    (other,) = (prepared / "other").rglob("config.json")
    run = RunFolder(config.parent)
    damage(run.path / name, how, other.parent)
    before = contents(run.path)
    capsys.readouterr()
    status = COMMANDS[command](run, RunFolder(whole.parent))
    said = "".join(capsys.readouterr())
    assert "Traceback" not in said
    needless = command in ("export", "report") and name in ("last.ckpt", "model.safetensors")  # which these two do not look into
    if status != 0 or (state == "finished" and command != "compare" and how != "deleted" and not needless):
        assert name in said
    if status != 0:
        assert contents(run.path) == before
