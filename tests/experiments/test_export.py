import json
import logging
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.export import export_run, inference_model, trained_model
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import RunFolder
from guided_collapse.experiments.tasks import build_task
from tests.experiments.runs import DIGITS, FREE, contents, interrupted_before, placed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(DIGITS, placed(tmp_path_factory.mktemp("runs")))


def images_and_logits(run, number):
    """Raw images from 0 to 1, and the trained model's logits."""
    task = build_task(DIGITS)
    images = task.data.test.images[:number].float() / 255
    inputs = next(iter(task.clean_batches(ProcessShare(), test=True))).inputs[:number]
    with torch.no_grad():
        return images, trained_model(run)(inputs)


@pytest.mark.parametrize("head", ["linear", "cosine", "nearest-etf"])
def test_the_inference_model_takes_raw_images_and_has_stock_layers_only(head, tmp_path):
    run = train(replace(DIGITS, head=head, epochs=1), placed(tmp_path))
    images, logits = images_and_logits(run, 5)
    model = inference_model(run)
    torch.testing.assert_close(model(images), logits, rtol=0, atol=1e-5)
    assert not any(type(module).__module__.startswith("guided_collapse.heads") for module in model.modules())


def test_torch_export(run, tmp_path):
    export_run(run, tmp_path / "model.pt2")
    images, logits = images_and_logits(run, 7)
    extra = {"inputs.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    torch.testing.assert_close(program.module()(images), logits, rtol=0, atol=1e-5)
    assert json.loads(extra["inputs.json"])["class_names"] == list("0123456789")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec:FutureWarning")
def test_onnx(run, tmp_path, caplog):
    import onnxruntime

    export_run(run, tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    images, logits = images_and_logits(run, 7)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [put.shape for put in (*session.get_inputs(), *session.get_outputs())] == [["num_samples", 1, 8, 8], ["num_samples", 10]]
    assert json.loads(session.get_modelmeta().custom_metadata_map["inputs"])["class_names"] == list("0123456789")
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
    with pytest.raises(RequestError, match=r"one of .onnx, .pt2, .safetensors; got '.h5'"):
        export_run(run, tmp_path / "model.h5")
    with pytest.raises(RequestError, match=r"must be the folder of a run"):
        export_run(RunFolder(tmp_path / "nowhere"), tmp_path / "model.pt2")
    with pytest.raises(RequestError, match="unconstrained features"):
        export_run(train(replace(FREE, epochs=1), placed(tmp_path)), tmp_path / "model.pt2")
    with pytest.raises(RequestError, match=r"not a finished run with a model.safetensors. Run: guided-collapse resume"):
        export_run(interrupted_before(2, DIGITS, placed(tmp_path)), tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_the_model_of_a_run_is_not_replaced(run, tmp_path):
    (tmp_path / "link.safetensors").symlink_to(run.path / "model.safetensors")
    shutil.copytree(run.path, tmp_path / "other")
    before = contents(run.path), contents(tmp_path / "other")
    for target in (run.path / "model.safetensors", tmp_path / "link.safetensors", tmp_path / "other" / "model.safetensors"):
        with pytest.raises(RequestError, match="must not replace a file of a run; got"):
            export_run(run, target)
    assert before == (contents(run.path), contents(tmp_path / "other"))
