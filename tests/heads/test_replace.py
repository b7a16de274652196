"""Replacing the last layer of a model; models of real libraries are in tests/integrations."""

import copy
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from guided_collapse import CosineHead, FixedETFHead, NearestETFHead, replace_classifier


def network(**last):
    """A model with an inner linear layer, and last layers of the given names."""
    model = nn.Module()
    model.body = nn.Sequential(nn.Linear(8, 24), nn.Tanh())
    for name, layer in last.items():
        model.add_module(name, layer)
    return model


def linear(num_classes=5):
    return nn.Linear(24, num_classes)


def of_timm(*names):
    model = network(head=nn.Sequential(OrderedDict(norm=nn.LayerNorm(24), fc=linear())), head_dist=linear())
    found = tuple(model.get_submodule(name) for name in names)
    model.get_classifier = lambda: found if len(found) > 1 else found[0]
    return model


MODELS = {
    "torchvision's ResNet": (network(fc=linear(), auxiliary=linear()), "fc"),
    "torchvision's VGG": (network(classifier=nn.Sequential(nn.Linear(24, 24), nn.ReLU(), linear())), "classifier.2"),
    "torchvision's ViT": (network(heads=nn.Sequential(OrderedDict(pre=nn.Linear(24, 24), head=linear()))), "heads.head"),
    "torchvision's Swin": (network(head=linear()), "head"),
    "Hugging Face": (network(classifier=linear()), "classifier"),
    "timm": (of_timm("head.fc"), "head.fc"),
    "a sequence of sequences": (nn.Sequential(nn.Linear(8, 24), nn.Sequential(nn.ReLU(), linear())), "1.1"),
    "the only one": (nn.ModuleDict({"convolution": nn.Conv2d(1, 24, 3), "last": linear()}), "last"),
}


@pytest.mark.parametrize(("model", "place"), MODELS.values(), ids=MODELS)
def test_the_last_layer_is_replaced_and_the_rest_stays(model, place):
    model = copy.deepcopy(model).eval()
    before, kind = set(model.state_dict()), type(model)
    head = replace_classifier(model)
    assert isinstance(head, NearestETFHead)
    assert model.get_submodule(place) is head
    assert (head.feature_dim, head.num_classes, head.training, type(model)) == (24, 5, False, kind)
    of_layer = {name for name in before if name.startswith(f"{place}.")}
    assert set(model.state_dict()) - {f"{place}.{name}" for name in head.state_dict()} == before - of_layer


UNCLEAR = {
    "two of the usual names": (
        network(fc=linear(), classifier=linear()),
        r"has fc, classifier\. Pass layer=, one of: body\.0",
    ),
    "two classifiers": (of_timm("head.fc", "head_dist"), r"has head\.fc, head_dist\."),
    "timm without a classifier": (of_timm("head.norm"), r"has none\. Pass layer=, one of: body\.0, head\.fc, head_dist"),
    "no linear layer there": (network(classifier=nn.Conv2d(8, 5, 1)), r"has none\."),
    "unusual names": (network(first=linear(), second=linear()), r"has body\.0, first, second\."),
    "no linear layer": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), r"no nn\.Linear that could be replaced"),
    "a linear layer alone": (nn.Linear(24, 5), r"has none\. The model has no nn\.Linear"),
}


@pytest.mark.parametrize(("model", "message"), UNCLEAR.values(), ids=UNCLEAR)
def test_an_ambiguous_last_layer_raises_with_the_candidates(model, message):
    with pytest.raises(ValueError, match=message):
        replace_classifier(model)


def test_a_named_layer_and_options_of_the_head():
    model = network(first=linear(), second=linear(num_classes=7))
    head = replace_classifier(model, NearestETFHead, layer="first", num_classes=10, scale=10.0, lagged=True)
    assert model.first is head
    assert (head.num_classes, head.scale, head.lagged) == (10, 10.0, True)
    assert isinstance(replace_classifier(model, CosineHead, layer="second", center=True).centering, nn.Module)


def test_wrong_names_and_options_do_not_change_the_model():
    model = network(fc=linear())
    for name, kind in (("body", "'body', a Sequential"), ("nowhere", "'nowhere', no module of that name"), ("", "''")):
        with pytest.raises(ValueError, match=rf"layer must be the name of an nn\.Linear.*{kind}.*body\.0, fc"):
            replace_classifier(model, layer=name)
    with pytest.raises(TypeError, match="temprature"):
        replace_classifier(model, temprature=1.0)
    with pytest.raises(ValueError, match="num_classes=1"):
        replace_classifier(model, num_classes=1)
    assert isinstance(model.fc, nn.Linear)
    replace_classifier(model)
    with pytest.raises(ValueError, match=r"has none\."):
        replace_classifier(model)


def test_the_head_takes_the_device_and_dtype_of_the_layer():
    double = network(fc=linear().double())
    assert replace_classifier(double, FixedETFHead).frame.dtype == torch.float64
    half = network(fc=linear().bfloat16())
    assert replace_classifier(half, FixedETFHead).frame.dtype == torch.float32
    meta = network(fc=linear().to("meta"))
    assert replace_classifier(meta).frame.is_meta


def test_num_classes_attributes_of_the_model_are_updated():
    model = network(classifier=linear())
    model.num_classes = model.num_labels = 5
    model.config = SimpleNamespace(num_labels=5)
    replace_classifier(model, num_classes=3)
    assert (model.num_classes, model.num_labels, model.config.num_labels) == (3, 3, 3)
    other = network(fc=linear())
    replace_classifier(other, num_classes=3)
    assert not {"num_classes", "num_labels", "config"} & set(vars(other))
