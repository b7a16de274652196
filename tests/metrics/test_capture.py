"""Features are taken out of a model only where they are."""

import pytest
import torch
from torch import nn

from guided_collapse.metrics.capture import Capture


def test_the_input_of_the_classifier_or_the_output_of_the_layer():
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)), torch.randn(6, 3)
    hidden = model[:2](inputs)
    by_classifier, by_layer = Capture(model, None, "2"), Capture(model, "0", "2")
    with by_classifier.listening():
        assert torch.equal(by_classifier(inputs), hidden)
    with by_layer.listening():
        assert torch.equal(by_layer(inputs), model[0](inputs))
    assert by_layer.weight is not None
    assert torch.equal(by_layer.weight, model[2].weight)
    assert by_layer.bias is None
    assert by_layer.features is None


def test_images_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    capture = Capture(model, "0", None)
    with capture.listening(), pytest.raises(ValueError, match=r"gave \(5, 2, 1, 1\)"):
        capture(torch.randn(5, 1, 3, 3))


def test_a_module_that_is_never_called_is_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, inputs):
            return self.used(inputs)

    capture = Capture(Odd(), None, "unused")
    with capture.listening(), pytest.raises(ValueError, match="it was never called"):
        capture(torch.randn(5, 3))
