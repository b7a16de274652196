"""Features are taken out of a model only where they are."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from guided_collapse import Classifier, FixedETFHead
from guided_collapse.metrics.machinery.capture import Capture


def test_the_input_of_the_classifier_or_the_output_of_the_layer():
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)), torch.randn(6, 3)
    hidden = model[:2](inputs)
    by_classifier, by_layer = Capture(model, None, "2"), Capture(model, "0", "2")
    with by_classifier.listening():
        assert torch.equal(by_classifier(inputs).features, hidden)
    with by_layer.listening():
        assert torch.equal(by_layer(inputs).features, model[0](inputs))
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


class Calling(nn.Module):
    """A model with a body and a classifier, and a forward pass of choice."""

    def __init__(self, forward):
        super().__init__()
        self.body, self.fc, self.calls = nn.Linear(3, 4), nn.Linear(4, 4), forward

    def forward(self, inputs):
        return self.calls(self, inputs)


def captured(model, inputs, layer=None, classifier=None):
    capture = Capture(model, layer, classifier)
    with capture.listening():
        return capture(inputs).features


def test_what_works_in_place_afterward_does_not_change_the_features():
    inputs = torch.randn(6, 3)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    assert torch.equal(captured(model, inputs, layer="0"), model[0](inputs))
    model = Calling(lambda model, inputs: [hidden := model.body(inputs), model.fc(hidden), hidden.zero_()])
    assert torch.equal(captured(model, inputs, classifier="fc"), model.body(inputs))


def test_a_classifier_may_be_called_by_keyword():
    inputs = torch.randn(6, 3)
    model = Calling(lambda model, inputs: model.fc(input=model.body(inputs)))
    assert torch.equal(captured(model, inputs, classifier="fc"), model.body(inputs))
    model.fc = FixedETFHead(4, 4)
    model.calls = lambda model, inputs: model.fc(labels=None, features=model.body(inputs))
    usual = captured(Classifier(model.body, model.fc), inputs)
    assert torch.equal(captured(model, inputs), usual)


@pytest.mark.parametrize(("layer", "classifier"), [("fc", None), (None, "fc")])
def test_a_module_that_is_called_twice_is_refused(layer, classifier):
    model = Calling(lambda model, inputs: model.fc(model.fc(model.body(inputs))))
    with pytest.raises(ValueError, match=r"must be called once .* it was called again"):
        captured(model, torch.randn(5, 3), layer, classifier)


@pytest.mark.parametrize(
    ("output", "described"),
    [
        (lambda hidden: (hidden, None), "gave a tuple of Tensor, NoneType"),
        (lambda hidden: OrderedDict(logits=hidden, hidden_states=None), "gave a OrderedDict with logits, hidden_states"),
        (lambda hidden: None, "gave a NoneType"),
    ],
)
def test_a_layer_that_gives_no_tensor_says_what_it_gave(output, described):
    class Giving(nn.Module):
        def forward(self, hidden):
            return output(hidden)

    model = nn.Sequential(nn.Linear(3, 4), Giving())
    with pytest.raises(ValueError, match=f"{described}. Name .* this model has the linear layers 0"):
        captured(model, torch.randn(5, 3), layer="1")


def test_a_classifier_named_as_layer_gives_its_output():
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)), torch.randn(6, 3)
    assert torch.equal(captured(model, inputs, layer="1", classifier="1"), model(inputs))
