"""What a run goes on from: checkpoints of this and of earlier versions, and such as are not the run's."""

import json
from dataclasses import replace

import pytest
import torch

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.training.loop import train
from tests.experiments.training.runs import (
    FREE,
    as_an_earlier_version_wrote,
    assert_same,
    full_disk,
    placed,
    rewrite_checkpoint,
    weights,
)
from tests.experiments.training.test_damage import contents, interrupted_before

RUN = replace(FREE, epochs=4, trace=True)


def interrupted(out):
    return interrupted_before(4, RUN, placed(out, checkpoint_seconds=0.0))


def without(name):
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_facts(**changes):
    return lambda state: state | {"facts": state["facts"] | changes}


def of_another_size(state):
    return state | {"model": {name: torch.zeros(2, 3) for name in state["model"]}}


CHANGES = {
    "no epoch": without("epoch"),
    "no model": without("model"),
    "no optimizer": without("optimizer"),
    "no random numbers": without("random"),
    "no trace": without("trace"),
    "no records": without("records"),
    "a list": lambda state: [state],
    "a tensor": lambda _: torch.zeros(3),
    "nothing": lambda _: {},
    "epoch as text": lambda state: state | {"epoch": "3"},
    "a later epoch": lambda state: state | {"epoch": 7},
    "an earlier epoch": lambda state: state | {"epoch": 1},
    "no epoch done": lambda state: state | {"epoch": 0, "records": []},
    "a gap in the records": lambda state: state | {"records": [*state["records"][:1], *state["records"][2:], {"epoch": 3}]},
    "records of another kind": lambda state: state | {"records": ["a", "b", "c"]},
    "tensors of another model": of_another_size,
    "names of another model": lambda state: state | {"model": {"weight": torch.zeros(3)}},
    "numbers as a model": lambda state: state | {"model": dict.fromkeys(state["model"], 3)},
    "another optimizer": lambda state: state | {"optimizer": {"state": {}, "param_groups": []}},
    "no state of an optimizer": lambda state: state | {"optimizer": {"x": 1}},
    "too few random numbers": lambda state: state | {"random": torch.zeros(3, dtype=torch.uint8)},
    "random numbers as floats": lambda state: state | {"random": torch.zeros(5000)},
    "half a trace": lambda state: state | {"trace": {"epochs": [1]}},
    "facts as a list": lambda state: state | {"facts": [1]},
    "facts of no run": lambda state: state | {"facts": {"format": 1}},
    "facts of a later format": with_facts(format=2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_checkpoint_with_other_contents_is_named_and_nothing_is_changed(change, tmp_path, capsys):
    run = interrupted(tmp_path)
    rewrite_checkpoint(run, change)
    before = contents(run.path)
    assert main(["resume", str(run.path), "--accelerator", "cpu", "--quiet"]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert str(run.path / "last.ckpt") in said
    assert contents(run.path) == before


@pytest.mark.filterwarnings("ignore:.*no config.json.*taken is what .*last.ckpt keeps:RuntimeWarning")
def test_a_checkpoint_without_its_configuration_is_not_taken_for_another(tmp_path):
    run = interrupted(tmp_path)
    run.config_file.unlink()
    before = contents(run.path)
    with pytest.raises(ValueError, match=r"scale is 5.0, not 9.0"):
        train(replace(RUN, scale=9.0), placed(tmp_path))
    assert contents(run.path) == before
    assert_same(train(RUN, placed(tmp_path)), train(RUN, placed(tmp_path / "whole")))
    assert json.loads(run.config_file.read_text())["configuration"] == RUN.resolved().to_dict()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run, other = interrupted(tmp_path), train(replace(RUN, gain=1.0), placed(tmp_path / "other"))
    (run.path / "last.ckpt").write_bytes((other.path / "last.ckpt").read_bytes())
    before = contents(run.path)
    with pytest.raises(ValueError, match=r"config.json and last.ckpt must be of one run; got those of two: gain is 1.0, not 10.0"):
        train(RUN, placed(tmp_path))
    assert contents(run.path) == before


@pytest.mark.parametrize("epochs", [4, 6])
def test_an_interrupted_run_of_an_earlier_version_goes_on(epochs, tmp_path):
    as_an_earlier_version_wrote(interrupted(tmp_path / "old"))
    wanted = replace(RUN, epochs=epochs)
    assert_same(train(wanted, placed(tmp_path / "old", lengthen=True)), train(wanted, placed(tmp_path / "whole")))


def test_a_finished_run_of_an_earlier_version_is_finished(tmp_path, capsys):
    run = as_an_earlier_version_wrote(train(RUN, placed(tmp_path)))
    before = contents(run.path)
    capsys.readouterr()
    train(RUN, placed(tmp_path))
    assert "finished already" in capsys.readouterr().err
    assert contents(run.path) == before


@pytest.mark.filterwarnings("ignore:.*metrics.jsonl is damaged:RuntimeWarning")
@pytest.mark.parametrize("state", ["interrupted", "finished"])
def test_records_that_an_earlier_version_did_not_keep_twice_are_missed(state, tmp_path):
    run = as_an_earlier_version_wrote(interrupted(tmp_path) if state == "interrupted" else train(RUN, placed(tmp_path)))
    lines = run.records_file.read_text().splitlines(keepends=True)
    run.records_file.write_text("".join(lines[:2]))
    before = contents(run.path)
    assert not run.is_finished
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged: it has the epochs up to 2, and \d are needed"):
        train(RUN, placed(tmp_path))
    assert contents(run.path) == before


def test_records_with_a_hole_are_filled_from_the_checkpoint(tmp_path):
    run = interrupted(tmp_path / "cut")
    lines = run.records_file.read_text().splitlines(keepends=True)
    run.records_file.write_text(lines[0])
    assert_same(train(RUN, placed(tmp_path / "cut")), train(RUN, placed(tmp_path / "whole")))


def test_a_run_without_a_checkpoint_begins_again_and_loses_no_record(tmp_path):
    run = interrupted(tmp_path / "cut")
    for name in ("last.ckpt", "previous.ckpt"):
        (run.path / name).unlink()
    before = run.records_file.read_bytes()
    with pytest.warns(RuntimeWarning, match=r"begins again. Its records so far are in .*metrics.before.jsonl"):
        assert_same(train(RUN, placed(tmp_path / "cut")), train(RUN, placed(tmp_path / "whole")))
    assert (run.path / "metrics.before.jsonl").read_bytes() == before


def test_a_run_that_was_killed_in_its_first_epoch_begins_again(tmp_path):
    run = interrupted_before(1, RUN, placed(tmp_path / "cut"))
    assert set(contents(run.path)) == {"config.json", "failed.json"}
    assert_same(train(RUN, placed(tmp_path / "cut")), train(RUN, placed(tmp_path / "whole")))


def test_files_of_a_run_without_its_configuration_are_kept(tmp_path):
    run = as_an_earlier_version_wrote(train(RUN, placed(tmp_path)))
    run.config_file.unlink()
    before = contents(run.path)
    with pytest.raises(ValueError, match=r"no config.json.*Put it back, or move the folder away"):
        train(RUN, placed(tmp_path))
    assert contents(run.path) == before


@pytest.mark.parametrize("version", ["this", "earlier"])
def test_a_run_that_is_made_longer_and_interrupted_keeps_its_finished_model(version, tmp_path, monkeypatch):
    run = train(replace(RUN, epochs=2), placed(tmp_path))
    if version == "earlier":
        as_an_earlier_version_wrote(run)
    before = weights(run)

    def check():
        assert not run.is_finished
        assert all((tensor == weights(run)[name]).all() for name, tensor in before.items())

    for epoch in (3, 4):
        interrupted_before(epoch, RUN, placed(tmp_path, checkpoint_seconds=0.0, lengthen=True))
        check()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_arrays", full_disk)
        with pytest.raises(OSError, match="No space"):
            train(RUN, placed(tmp_path))
    check()
    assert_same(train(RUN, placed(tmp_path)), train(RUN, placed(tmp_path / "whole")))
    assert run.is_finished
