"""A model and a loader give what the pure function gives on the same features, and the model stays as it was."""

import io
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from guided_collapse import Classifier, CollapseMetrics, CosineHead, FixedETFHead, NearestETFHead
from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.model import _counted, collapse_of
from tests.metrics.machinery.test_streaming import RANKS, agree

INPUTS = torch.randn(90, 5, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(90) % 4
LOADER = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=16, shuffle=True)


def network():
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


def features_of(model):
    with torch.no_grad():
        return model[:4].eval()(INPUTS)


def close(result, expected, **options):
    # Batches of another size round otherwise in float32.
    agree(result, expected, relative=1e-4, absolute=1e-5, **options)


@pytest.mark.parametrize("classifier", ["4", None])
def test_any_linear_layer_is_a_classifier(classifier):
    model = network().train()
    result = collapse_of(model, LOADER, classifier=classifier or model[4], progress=False)
    close(result, measure_collapse(features_of(model), LABELS, model[4].weight, model[4].bias), left_out=RANKS)
    assert result.accuracy == (model.eval()(INPUTS).argmax(dim=1) == LABELS).double().mean().item()


def test_the_last_layer_need_not_be_named():
    model = network().train()
    expected = collapse_of(model, LOADER, classifier="4", keep_features=True, progress=False)
    close(collapse_of(model, LOADER, progress=False), expected, left_out=RANKS)
    close(collapse_of(model, iter(list(LOADER)), keep_features=True, progress=False), expected)
    named = [{"pixel_values": INPUTS[part], "labels": LABELS[part]} for part in (slice(50), slice(50, 90))]
    close(collapse_of(Named(model), named, progress=False), expected, left_out=RANKS)
    assert all(module.training for module in model)


def test_kept_features_take_one_pass_and_give_ranks():
    model = network()
    once = iter(list(LOADER))
    result = collapse_of(model, once, classifier="4", keep_features=True, progress=False)
    close(result, measure_collapse(features_of(model), LABELS, model[4].weight, model[4].bias))


def test_a_named_layer_gives_features_alone():
    model = network()
    result = collapse_of(model, LOADER, layer="2", num_classes=5, progress=False, global_mean="classes")
    with torch.no_grad():
        features = model[:3].eval()(INPUTS)
    close(result, measure_collapse(features, LABELS, num_classes=5, global_mean="classes"), left_out=RANKS)
    assert result.missing_classes == (4,)


def test_a_test_loader_is_judged_by_the_class_means_of_the_loader():
    model = network()
    test_loader = [(INPUTS[:30] + 0.1, LABELS[:30])]
    result = collapse_of(model, LOADER, classifier="4", test_loader=test_loader, progress=False)
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
    [NearestETFHead, FixedETFHead, CosineHead, lambda *sizes: CosineHead(*sizes, normalize=False, center=True, learned_bias=True)],
    ids=["nearest", "fixed-etf", "linear", "unnormalized"],
)
def test_our_heads_are_measured_where_they_predict(head, wrapped):
    model = Classifier(network()[:3], head(8, 4))
    for _ in range(3):
        model(INPUTS, LABELS)
    result = collapse_of(nn.Sequential(model) if wrapped else model, LOADER, progress=False)
    model.eval()
    with torch.no_grad():
        predictions = model(INPUTS).argmax(dim=1)
        points = model.backbone(INPUTS)
    if model.head.scale is not None:
        points = model.head.scale * points / points.norm(dim=1, keepdim=True)
    close(result, measure_collapse(points, LABELS, model.head.weight, model.head.bias), left_out=RANKS)
    assert result.accuracy == (predictions == LABELS).double().mean().item()


@pytest.mark.parametrize("head", [NearestETFHead, lambda *sizes: CosineHead(*sizes, normalize=False)], ids=["nearest", "plain"])
def test_the_points_of_a_classifier_are_what_to_stream(head):
    model = Classifier(network()[:3], head(8, 4))
    for _ in range(3):
        model(INPUTS, LABELS)
    expected = collapse_of(model, LOADER, progress=False)
    metric = CollapseMetrics(num_classes=4, feature_dim=8)
    model.backbone.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for inputs, labels in LOADER:
            metric.update(model.points(inputs), labels)
    assert metric.measure(model.head.weight, model.head.bias).nc1 == pytest.approx(expected.nc1, rel=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.bfloat16().points(INPUTS.bfloat16()).dtype == torch.float32


class Named(nn.Module):
    """As models of other libraries are: inputs by name, an object for an answer."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, *, pixel_values, scale=1.0):
        return SimpleNamespace(logits=self.network(pixel_values * scale))


@pytest.mark.parametrize("label_name", ["labels", "label"])
def test_batches_may_be_dictionaries(label_name):
    model = network()
    loader = [{"pixel_values": INPUTS[part] / 2, label_name: LABELS[part], "scale": 2.0} for part in (slice(50), slice(50, 90))]
    result = collapse_of(Named(model), loader, classifier="network.4", progress=False)
    close(result, collapse_of(model, LOADER, classifier="4", progress=False))
    with pytest.raises(ValueError, match=r"labels under one of labels, label; got pixel_values, target"):
        collapse_of(Named(model), [{"pixel_values": INPUTS, "target": LABELS}], classifier="network.4", progress=False)


def test_the_model_is_as_before_even_after_an_error():
    model = network().train()
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    collapse_of(model, LOADER, classifier="4", progress=False)
    with pytest.raises(ValueError, match="got values from 5 to 5"):
        collapse_of(model, [(INPUTS[:2], torch.tensor([5, 5]))], classifier="4", progress=False)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(len(module._forward_hooks) == 0 for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_refusals():
    model = network()
    with pytest.raises(ValueError, match=r"returns that of no linear layer.*linear layers 0, 4"):
        collapse_of(nn.Sequential(*model, nn.Softmax(dim=1)), LOADER)
    with pytest.raises(ValueError, match="must give at least one batch"):
        collapse_of(model, [])
    with pytest.raises(ValueError, match=r"must be an nn.Linear of the model.*got '2'"):
        collapse_of(model, LOADER, classifier="2")
    with pytest.raises(ValueError, match=r"must be an nn.Linear of the model"):
        collapse_of(model, LOADER, classifier=nn.Linear(8, 4))
    with pytest.raises(ValueError, match=r"got 'pool'. Known: 0, 1, 2, 3, 4"):
        collapse_of(model, LOADER, layer="pool")
    with pytest.raises(ValueError, match="num_classes must be given"):
        collapse_of(model, LOADER, layer="2")
    with pytest.raises(ValueError, match="must give at least one batch"):
        collapse_of(model, [], classifier="4")
    with pytest.raises(ValueError, match="gone through twice"):
        collapse_of(model, iter(list(LOADER)), classifier="4")
    with pytest.raises(ValueError, match=r"batches \(inputs, labels\); got Tensor"):
        collapse_of(model, [INPUTS], classifier="4")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_the_count_and_others_nothing(monkeypatch):
    for stream, expected in ((Terminal(), "\rpass: batch 1/2\rpass: batch 2/2\n"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(_counted(["a", "b"], "pass")) == ["a", "b"]
        assert stream.getvalue() == expected
