"""Checkpoints of linear layers, safetensors files, and averaged weights."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.heads.cases import ALL, assert_same_state, batches, build, train, trained_model


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf-random", "tight", "tight-fixed"])
def test_the_checkpoint_of_a_linear_layer_does_not_load_into_the_frame(name):
    model = trained_model(name)
    before = model.head.weight.clone()
    linear = {"head.weight": torch.randn(before.shape), "head.bias": torch.randn(len(before))}
    found = model.load_state_dict(linear, strict=False)
    assert set(found.unexpected_keys) == {"head.weight", "head.bias"}
    assert torch.equal(model.head.weight, before)


@pytest.mark.parametrize("name", ALL)
def test_safetensors_round_trip(name, tmp_path):
    model = trained_model(name)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    fresh = build(name)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert_same_state(fresh, model)


@pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "tight"])
def test_averaged_weights_keep_the_frame_of_the_model(name):
    model = build(name)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for batch in batches(8, num_classes=model.head.num_classes):
        train(model, [batch])
        averaged.update_parameters(model)
    assert_same_state(averaged.module.head, model.head)
    assert not torch.equal(averaged.module.backbone[0].weight, model.backbone[0].weight)
