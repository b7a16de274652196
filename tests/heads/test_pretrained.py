"""Heads inside models of transformers, whose loader creates models on the meta device and in the requested dtype."""

import pytest
import torch
from torch import nn

from guided_collapse import FixedETFHead, Head, NearestETFHead

pytestmark = [pytest.mark.documentation, pytest.mark.slow]

FEATURES, LABELS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 4


def model_class(head, strict):
    from transformers import PretrainedConfig, PreTrainedModel

    class Model(PreTrainedModel):
        config_class = PretrainedConfig
        _keep_in_fp32_modules_strict = strict

        def __init__(self, config):
            super().__init__(config)
            self.body, self.head = nn.Linear(6, 8), head(8, 4)
            self.post_init()

        def _init_weights(self, module):
            if isinstance(module, Head):
                module.reset_parameters()

        def forward(self, features, labels=None):
            return self.head(self.body(features.to(self.body.weight.dtype)), labels)

    return Model(PretrainedConfig())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("strict", [None, ["head"]], ids=["plain", "strict"])
@pytest.mark.parametrize("head", [NearestETFHead, FixedETFHead])
def test_a_saved_model_continues_training(head, strict, dtype, tmp_path):
    model = model_class(head, strict)
    for _ in range(3):
        model(FEATURES, LABELS)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    expected = model.head.state_dict()
    for key, value in loaded.head.state_dict().items():
        assert value.dtype == expected[key].dtype, key
        exact = dtype is None or strict is not None
        torch.testing.assert_close(value, expected[key], rtol=0, atol=0 if exact else 0.05)
    assert loaded.body.weight.dtype == (dtype or torch.float32)
    loaded.train()(FEATURES, LABELS).sum().backward()


@pytest.mark.parametrize("head", [NearestETFHead, FixedETFHead])
def test_a_head_missing_from_the_checkpoint_is_initialized(head, tmp_path):
    model = model_class(head, None)
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    model.save_pretrained(tmp_path, state_dict=state)
    loaded = type(model).from_pretrained(tmp_path)
    assert all(torch.equal(value, model.head.state_dict()[key]) for key, value in loaded.head.state_dict().items())
