"""The models that configurations name."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional

from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.training.build import build_head
from guided_collapse.experiments.configuration import Configuration

CONFIGURATION = replace(PRESETS["omniglot-small"], head="linear")


def trained(layer: nn.Module) -> torch.Tensor:
    """Logits after some steps of SGD on features that are far from centered."""
    generator = torch.Generator().manual_seed(1)
    features, labels = torch.rand(40, 6, generator=generator) + 3, torch.arange(40) % 4
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for batch in range(10):
        chosen = slice(8 * (batch % 5), 8 * (batch % 5) + 8)
        optimizer.zero_grad()
        functional.cross_entropy(layer(features[chosen]), labels[chosen]).backward()
        optimizer.step()
    return layer.eval()(features).detach()


def test_the_linear_layer_in_comparisons_is_the_one_that_people_have():
    head = build_head(CONFIGURATION, 6, 4, torch.Generator().manual_seed(0))
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.copy_(head.weight)
        layer.bias.zero_()
    torch.testing.assert_close(trained(head), trained(layer), rtol=1e-6, atol=1e-6)


def test_heads_are_centered_and_have_a_bias_as_the_protocol_and_the_network_say():
    def built(**changes: object) -> tuple[bool, bool]:
        configuration = Configuration.from_dict(CONFIGURATION.to_dict() | changes)
        head = build_head(configuration, 6, 4, torch.Generator())
        return head.running_mean is not None, "learned_bias" in dict(head.named_parameters())

    assert built() == (False, True)
    assert built(affine=False) == (False, False)
    assert built(head="cosine") == (True, False)
    assert built(head="cosine", protocol="paper") == (False, False)
    assert built(head="fixed-etf", protocol="paper") == (True, False)
