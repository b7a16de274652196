"""`collapse_of` agrees with `measure_collapse` on the same features, and restores the model."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import Classifier, CollapseMetrics, CosineHead, FixedETFHead, NearestETFHead, collapse_of, measure_collapse
from guided_collapse.metrics.measure import Capture
from tests.metrics.cases import RANKS, agree

INPUTS = torch.randn(90, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(90) % 4
LOADER = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=16, shuffle=True)


def network():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


def features_of(model):
    with torch.no_grad():
        return model[:4].eval()(INPUTS)


def close(result, expected, **options):
    # Batches of different sizes round differently in float32.
    agree(result, expected, relative=1e-4, absolute=1e-5, **options)


@pytest.mark.parametrize("classifier", ["4", None])
def test_any_linear_layer_is_a_classifier(classifier):
    model = network().train()
    result = collapse_of(model, LOADER, classifier=classifier or model[4])
    close(result, measure_collapse(features_of(model), LABELS, model[4].weight, model[4].bias), left_out=RANKS)
    assert result.accuracy == (model.eval()(INPUTS).argmax(dim=1) == LABELS).double().mean().item()


def test_the_last_layer_need_not_be_named():
    model = network().train()
    expected = collapse_of(model, LOADER, classifier="4", keep_features=True)
    close(collapse_of(model, LOADER), expected, left_out=RANKS)
    close(collapse_of(model, iter(list(LOADER)), keep_features=True), expected)
    close(expected, measure_collapse(features_of(model.train()), LABELS, model[4].weight, model[4].bias))


def test_a_named_layer_without_classifier():
    model = network()
    result = collapse_of(model, LOADER, layer="2", num_classes=5, global_mean="classes")
    with torch.no_grad():
        features = model[:3].eval()(INPUTS)
    close(result, measure_collapse(features, LABELS, num_classes=5, global_mean="classes"), left_out=RANKS)
    assert result.missing_classes == (4,)


def test_a_test_loader_is_judged_by_the_class_means_of_the_loader():
    model = network()
    test_loader = [(INPUTS[:30] + 0.1, LABELS[:30])]
    result = collapse_of(model, LOADER, classifier="4", test_loader=test_loader)
    features = features_of(model)
    with torch.no_grad():
        test_features = model[:4].eval()(INPUTS[:30] + 0.1)
    expected = measure_collapse(
        features, LABELS, model[4].weight, model[4].bias, test_features=test_features, test_labels=LABELS[:30]
    )
    close(result, expected, left_out=RANKS)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    "head",
    [NearestETFHead, FixedETFHead, CosineHead, lambda *sizes: CosineHead(*sizes, center=True), nn.Linear],
    ids=["nearest", "fixed-etf", "cosine", "cosine, centered", "linear"],
)
def test_our_heads_are_measured_where_they_predict(head, wrapped):
    model = Classifier(network()[:3], head(8, 4))
    for _ in range(3):
        model(INPUTS, LABELS)
    result = collapse_of(nn.Sequential(model) if wrapped else model, LOADER)
    model.eval()
    with torch.no_grad():
        predictions = model(INPUTS).argmax(dim=1)
        points = model.backbone(INPUTS)
    if not isinstance(model.head, nn.Linear):
        points = model.head.scale * points / points.norm(dim=1, keepdim=True)
    close(result, measure_collapse(points, LABELS, model.head.weight, model.head.bias), left_out=RANKS)
    assert result.accuracy == (predictions == LABELS).double().mean().item()


@pytest.mark.parametrize("head", [NearestETFHead, nn.Linear])
def test_streaming_the_points_of_a_classifier(head):
    model = Classifier(network()[:3], head(8, 4))
    for _ in range(3):
        model(INPUTS, LABELS)
    expected = collapse_of(model, LOADER)
    metric = CollapseMetrics(8, 4)
    model.backbone.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for inputs, labels in LOADER:
            metric.update(model.points(inputs), labels)
    assert metric.measure(model.head.weight, model.head.bias).nc1 == pytest.approx(expected.nc1, rel=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Named(nn.Module):
    """A model in the style of other libraries, with inputs by name and an object as output."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, *, pixel_values, scale=1.0):
        return SimpleNamespace(logits=self.network(pixel_values * scale))


@pytest.mark.parametrize("label_name", ["labels", "label"])
def test_batches_may_be_dictionaries(label_name):
    model = network()
    loader = [{"pixel_values": INPUTS[part] / 2, label_name: LABELS[part], "scale": 2.0} for part in (slice(50), slice(50, 90))]
    result = collapse_of(Named(model), loader, classifier="network.4")
    close(result, collapse_of(model, LOADER, classifier="4"))
    with pytest.raises(ValueError, match=r"labels under one of labels, label; got pixel_values, target"):
        collapse_of(Named(model), [{"pixel_values": INPUTS, "target": LABELS}], classifier="network.4")


def test_the_model_is_restored_even_after_an_error():
    model = network().train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    collapse_of(model, LOADER, classifier="4")
    with pytest.raises(ValueError, match="got values from 5 to 5"):
        collapse_of(model, [(INPUTS[:2], torch.tensor([5, 5]))], classifier="4")
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(len(module._forward_hooks) == 0 for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_refusals():
    model = network()
    for unclear in (nn.Sequential(*model, nn.Softmax(dim=1)), Named(model)):
        with pytest.raises(ValueError, match=r"last linear layer is unclear. Pass classifier=, one of: .*0, .*4"):
            collapse_of(unclear, LOADER)
    with pytest.raises(ValueError, match="It has no linear layer; pass layer= and num_classes="):
        collapse_of(nn.ReLU(), LOADER)
    for wrong in ("2", nn.Linear(8, 4)):
        with pytest.raises(ValueError, match=r"must be an nn.Linear of the model, or its name.* Pass classifier=, one of: 0, 4"):
            collapse_of(model, LOADER, classifier=wrong)
    with pytest.raises(ValueError, match=r"got 'pool'. Known: 0, 1, 2, 3, 4"):
        collapse_of(model, LOADER, layer="pool")
    with pytest.raises(ValueError, match="num_classes is required"):
        collapse_of(model, LOADER, layer="2")
    with pytest.raises(ValueError, match="must yield at least one batch"):
        collapse_of(model, [])
    with pytest.raises(ValueError, match="allow two iterations"):
        collapse_of(model, iter(list(LOADER)))
    with pytest.raises(TypeError, match=r"batches \(inputs, labels\); got Tensor"):
        collapse_of(model, [INPUTS])


class Calling(nn.Module):
    """A model with a body, a classifier, and a given forward pass."""

    def __init__(self, forward):
        super().__init__()
        self.body, self.fc, self.calls = nn.Linear(3, 4), nn.Linear(4, 4), forward

    def forward(self, inputs):
        return self.calls(self, inputs)


def captured(model, inputs, layer=None, classifier=None):
    capture = Capture(model, layer, classifier)
    with capture.listening():
        return capture(inputs)[0]


def test_the_input_of_the_classifier_or_the_output_of_the_layer():
    model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False)), torch.randn(6, 3)
    assert torch.equal(captured(model, inputs, classifier="2"), model[:2](inputs))
    assert torch.equal(captured(model, inputs, layer="0", classifier="2"), model[0](inputs))
    assert torch.equal(captured(model, inputs, layer="2", classifier="2"), model(inputs))
    capture = Capture(model, "0", "2")
    assert torch.equal(capture.weight, model[2].weight)
    assert capture.bias is None


def test_images_and_modules_that_are_never_called_are_refused():
    with pytest.raises(ValueError, match=r"got \(5, 2, 1, 1\)"):
        captured(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2)), torch.randn(5, 1, 3, 3), layer="0")
    with pytest.raises(ValueError, match=r"must be called by .* but was not"):
        captured(Calling(lambda model, inputs: model.body(inputs)), torch.randn(5, 3), classifier="fc")


def test_later_in_place_operations_do_not_change_the_features():
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
    with pytest.raises(ValueError, match=r"must be called only once .* was called again"):
        captured(model, torch.randn(5, 3), layer, classifier)


@pytest.mark.parametrize("output", [lambda hidden: (hidden, None), lambda hidden: {"logits": hidden}, lambda hidden: None])
def test_a_layer_that_does_not_return_a_tensor_raises(output):
    class Giving(nn.Module):
        def forward(self, hidden):
            return output(hidden)

    model = nn.Sequential(nn.Linear(3, 4), Giving())
    with pytest.raises(TypeError, match=r"features must be a tensor; the named module has a (tuple|dict|NoneType) instead"):
        captured(model, torch.randn(5, 3), layer="1")
