import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from guided_collapse.training.export import export_run, inference_model, trained_model
from guided_collapse.training.loop import train
from guided_collapse.training.run import RunFolder
from guided_collapse.training.tasks import Share, build_task
from tests.training.runs import DIGITS, FREE, placed

ONNX_NOISE = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(DIGITS, placed(tmp_path_factory.mktemp("runs")))


def images_and_logits(run, number):
    """Raw images from 0 to 1, and what the trained model says about them."""
    task = build_task(DIGITS)
    images = task.data.test.images[:number].float() / 255
    inputs = next(iter(task.clean_batches(Share(), test=True))).inputs[:number]
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
