"""Layers between given features and a head."""

import pytest
import torch
from torch.nn import functional

from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.backbones.neck import HIDDEN_UNITS, Neck


def neck(kind, **options):
    return Neck(in_channels=6, neck=kind, generator=torch.Generator().manual_seed(0), **options)


def test_what_each_kind_computes():
    inputs = torch.randn(5, 6)
    assert torch.equal(neck("none")(inputs), inputs)
    linear = neck("linear", feature_dim=4)
    (layer,) = linear.layers
    torch.testing.assert_close(linear(inputs), inputs @ layer.weight.T + layer.bias)
    mlp = neck("mlp", feature_dim=4)
    first, _, last = mlp.layers
    torch.testing.assert_close(mlp(inputs), functional.relu(inputs @ first.weight.T + first.bias) @ last.weight.T + last.bias)
    assert first.out_features == HIDDEN_UNITS


def test_width_biases_and_the_source_of_weights():
    assert [neck(kind).feature_dim for kind in ("none", "linear", "mlp")] == [6, 6, 6]
    assert neck("mlp", feature_dim=3).feature_dim == 3
    assert [name for name, _ in neck("mlp", affine=False).named_parameters()] == ["layers.0.weight", "layers.2.weight"]
    assert all(torch.equal(one, other) for one, other in zip(neck("mlp").parameters(), neck("mlp").parameters(), strict=True))


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="neck must be one of none, linear, mlp; got 'deep'"):
        neck("deep")
    with pytest.raises(ValueError, match=r"backbone must be one of .*timm:MODEL, none; got 'timm'"):
        build_backbone("timm")
