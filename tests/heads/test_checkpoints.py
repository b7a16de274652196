"""Checkpoints: those of linear layers, and files of safetensors."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.heads.cases import ALL, build, trained_model

every_head = pytest.mark.parametrize("name", ALL)
frames = pytest.mark.parametrize("name", ["nearest-etf", "nearest-etf-lagged", "fixed-etf-random", "tight", "tight-fixed"])


def trained(name):
    return trained_model(name, num_steps=3)


@frames
def test_the_checkpoint_of_a_linear_layer_leaves_the_frame_alone(name):
    model = trained(name)
    before = model.head.weight.clone()
    linear = {"weight": torch.randn(before.shape), "bias": torch.randn(len(before))}
    found = model.load_state_dict({f"head.{key}": value for key, value in linear.items()}, strict=False)
    assert set(found.unexpected_keys) == {"head.weight", "head.bias"}
    assert torch.equal(model.head.weight, before)
    unit_rows = torch.nn.functional.normalize(linear["weight"], dim=1)
    model.head.load_state_dict({"weight": unit_rows}, strict=False)
    assert torch.equal(model.head.weight, before)


@every_head
def test_safetensors_takes_the_state_as_it_is(name, tmp_path):
    model = trained(name)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    fresh = build(name)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in model.state_dict().items())
