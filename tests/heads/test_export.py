import io

import numpy as np
import onnxruntime
import pytest
import torch

from tests.heads.cases import ALL, batches, trained_model


def modules_of(module):
    return {type(part).__module__.split(".")[0] for part in module.modules()}


@pytest.mark.parametrize("name", ALL)
def test_export_gives_the_eval_logits_with_stock_layers_only(name):
    model = trained_model(name)
    inputs, _ = next(batches(1))
    exported = model.export()
    assert modules_of(exported) == {"torch"}
    torch.testing.assert_close(exported(inputs), model(inputs), rtol=0, atol=1e-5)
    features = torch.randn(6, model.head.feature_dim) * torch.logspace(-6, 6, 6)[:, None]
    torch.testing.assert_close(model.head.export()(features), model.head(features), rtol=1e-5, atol=1e-5)
    assert not exported.training
    before = model(inputs)
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.zero_()
    assert torch.equal(model(inputs), before)


def test_zero_features_give_the_bias():
    head = trained_model("nearest-etf").head
    torch.testing.assert_close(head.export()(torch.zeros(1, 12))[0], head.bias)
    torch.testing.assert_close(head(torch.zeros(1, 12))[0], head.bias)


@pytest.mark.parametrize("name", ["nearest-etf", "cosine", "anchored-centered"])
def test_torch_export_with_a_dynamic_batch_size(name):
    model = trained_model(name)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model.export(), (torch.randn(4, 8),), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    inputs = torch.randn(9, 8)
    torch.testing.assert_close(torch.export.load(file).module()(inputs), model(inputs), rtol=0, atol=1e-5)


def assert_same_logits_by_onnxruntime(file, model):
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs = torch.randn(9, 8)
    (logits,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    np.testing.assert_allclose(logits, model(inputs).detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["nearest-etf", "tight", "cosine", "anchored-centered"])
def test_onnx_export(name, tmp_path):
    model, file = trained_model(name), tmp_path / "model.onnx"
    free = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    torch.onnx.export(model.export(), (torch.randn(4, 8),), file, dynamo=True, verbose=False, **free)
    assert_same_logits_by_onnxruntime(file, model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["nearest-etf", "cosine"])
def test_the_older_onnx_exporter_without_rms_norm(name, tmp_path):
    model, file = trained_model(name), tmp_path / "model.onnx"
    exported = model.export(rms_norm=False)
    assert modules_of(exported) == {"torch"}
    features = torch.randn(6, 12) * torch.logspace(-6, 6, 6)[:, None]
    torch.testing.assert_close(exported[1](features), model.head(features), rtol=1e-5, atol=1e-5)
    free = {"input_names": ["inputs"], "dynamic_axes": {"inputs": {0: "batch"}}}
    torch.onnx.export(exported, (torch.randn(4, 8),), file, dynamo=False, **free)
    assert_same_logits_by_onnxruntime(file, model)
