"""The classifier is found by what it does, not by its name or place."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from guided_collapse.metrics.machinery.last_layer import last_linear


class Odd(nn.Module):
    """Its classifier comes first among its layers, and a projection that has nothing to do with it comes last."""

    def __init__(self, answer=lambda logits: logits):
        super().__init__()
        self.scores, self.body, self.projection, self.answer = nn.Linear(4, 3), nn.Linear(5, 4), nn.Linear(4, 3), answer

    def forward(self, inputs):
        hidden = self.body(inputs)
        logits = self.scores(hidden)
        self.projection(hidden)
        return self.answer(logits)


def found(model):
    return last_linear(model, lambda: model(torch.randn(6, 5)))


@pytest.mark.parametrize(
    "answer",
    [
        lambda logits: logits,
        lambda logits: (logits.sum(), logits),
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["tensor", "tuple", "dictionary", "object"],
)
def test_the_layer_whose_output_is_returned(answer):
    model = Odd(answer)
    assert found(model) is model.scores
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("answer", [lambda logits: logits.log_softmax(dim=1), lambda logits: logits.zero_(), lambda logits: None])
def test_what_no_linear_layer_gives_is_refused(answer):
    with pytest.raises(ValueError, match=r"returns that of no linear layer.*linear layers scores, body, projection"):
        found(Odd(answer))


def test_two_classifiers_are_refused():
    model = nn.Linear(5, 3)
    pair = nn.ModuleDict({"first": model, "second": nn.Linear(5, 2)})
    inputs = torch.randn(6, 5)
    with pytest.raises(ValueError, match="returns that of several linear layers"):
        last_linear(pair, lambda: tuple(layer(inputs) for layer in pair.values()))
