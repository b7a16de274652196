import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.training.export import export_run, inference_model, trained_model
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.training.loop import train
from guided_collapse.experiments.training.tasks import build_task
from tests.experiments.training.runs import DIGITS, FREE, placed
from tests.experiments.training.test_damage import contents, damage, interrupted_before

ONNX_NOISE = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(DIGITS, placed(tmp_path_factory.mktemp("runs")))


def images_and_logits(run, number):
    """Raw images from 0 to 1, and what the trained model says about them."""
    task = build_task(DIGITS)
    images = task.images.data.test.images[:number].float() / 255
    inputs = next(iter(task.clean_batches(ProcessShare(), test=True))).inputs[:number]
    with torch.no_grad():
        return images, trained_model(run)(inputs)


def test_inference_model_takes_images_as_they_are(run):
    images, logits = images_and_logits(run, 5)
    torch.testing.assert_close(inference_model(run)(images), logits, rtol=0, atol=1e-5)


def test_torch_export(run, tmp_path):
    export_run(run, tmp_path / "model.pt2")
    images, logits = images_and_logits(run, 7)
    extra = {"inputs.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    torch.testing.assert_close(program.module()(images), logits, rtol=0, atol=1e-5)
    assert json.loads(extra["inputs.json"])["class_names"] == list("0123456789")


@pytest.mark.thorough
@ONNX_NOISE
def test_onnx(run, tmp_path, caplog):
    import onnxruntime

    export_run(run, tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    images, logits = images_and_logits(run, 7)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [put.shape for put in (*session.get_inputs(), *session.get_outputs())] == [["num_samples", 1, 8, 8], ["num_samples", 10]]
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    np.testing.assert_allclose(session.run(["logits"], {"images": images.numpy()})[0], logits, atol=1e-5)


def test_safetensors(run, tmp_path):
    export_run(run, tmp_path / "deep" / "model.safetensors")
    expected = inference_model(run).state_dict()
    with safe_open(tmp_path / "deep" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["inputs"])["shape"] == [1, 8, 8]
        assert set(file.keys()) == set(expected)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in expected.items())


def test_refusals(run, tmp_path):
    with pytest.raises(ValueError, match=r"one of .onnx, .pt2, .safetensors; got '.h5'"):
        export_run(run, tmp_path / "model.h5")
    with pytest.raises(ValueError, match=r"no config.json"):
        export_run(RunFolder(tmp_path), tmp_path / "model.pt2")
    free = train(replace(FREE, epochs=1), placed(tmp_path))
    with pytest.raises(ValueError, match="unconstrained features"):
        export_run(free, tmp_path / "model.pt2")
    free.model_file.unlink()
    with pytest.raises(ValueError, match=r"has not finished. Run: guided-collapse resume"):
        export_run(free, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("to", ["the model", "a link to it", "another run's model", "another name of the folder"])
def test_the_model_of_a_run_is_no_target(to, run, tmp_path):
    (tmp_path / "link.safetensors").symlink_to(run.model_file)
    shutil.copytree(run.path, tmp_path / "other")
    target = {
        "the model": run.model_file,
        "a link to it": tmp_path / "link.safetensors",
        "another run's model": tmp_path / "other" / "model.safetensors",
        "another name of the folder": run.path / ".." / "seed-0" / "model.safetensors",
    }[to]
    before = contents(run.path), contents(tmp_path / "other")
    with pytest.raises(ValueError, match="a file that no run needs; got"):
        export_run(run, target)
    assert before == (contents(run.path), contents(tmp_path / "other"))


def test_the_model_that_a_run_had_before_it_was_made_longer_can_be_exported(run, tmp_path):
    folder = tmp_path / "out" / "digits" / "nearest-etf" / "seed-0"
    shutil.copytree(run.path, folder)
    interrupted_before(3, replace(DIGITS, epochs=3), placed(tmp_path / "out", lengthen=True))
    with pytest.warns(RuntimeWarning, match=r"its end of 3 epochs; its model is that of 2. Run: guided-collapse resume"):
        export_run(RunFolder(folder), tmp_path / "model.safetensors")
    export_run(run, tmp_path / "before.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "before.safetensors").read_bytes()


@pytest.mark.parametrize("how", ["cut", "bit 0.5", "bit 1.0"])
def test_a_damaged_model_is_not_exported_and_is_made_again_from_the_last_checkpoint(how, run, tmp_path):
    folder = tmp_path / "out" / "digits" / "nearest-etf" / "seed-0"
    shutil.copytree(run.path, folder)
    damage(folder / "model.safetensors", how, run.path)
    with pytest.raises(ValueError, match=r"model.safetensors is damaged .*Run: guided-collapse resume"):
        export_run(RunFolder(folder), tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()
    with pytest.warns(RuntimeWarning, match=r"model.safetensors is damaged .*written again, from the last checkpoint"):
        train(DIGITS, placed(tmp_path / "out"))
    assert (folder / "model.safetensors").read_bytes() == run.model_file.read_bytes()


# Files of at most so many bytes, as on a full disk.
LIMITED = """
import resource, signal, sys
from pathlib import Path
from guided_collapse.experiments.training.export import export_run
from guided_collapse.experiments.training.folder.run import RunFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for target in sys.argv[2:]:
    try:
        export_run(RunFolder(Path(sys.argv[1])), Path(target))
    except OSError as error:
        print(error.errno, error)
"""


def test_a_disk_that_is_full_leaves_no_half_export(run, tmp_path):
    pytest.importorskip("resource")
    targets = [tmp_path / f"model{suffix}" for suffix in (".safetensors", ".pt2")]
    targets[0].write_bytes(b"old")
    (tmp_path / "config.json").write_bytes(b"of something else")
    command = [sys.executable, "-c", LIMITED, run.path, *targets]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    for target, line in zip(targets, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"{errno.EFBIG} [Errno {errno.EFBIG}] {target} could not be written")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "model.safetensors": b"old",
        "config.json": b"of something else",
    }
