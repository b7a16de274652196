"""`collapse_of` on models of timm and torchvision as they are, with random weights: the last layer is found automatically."""

import copy

import pytest
import timm
import torch
import torchvision
from torch import nn

from guided_collapse import collapse_of, measure_collapse

pytestmark = pytest.mark.integrations

LABELS = torch.arange(12) % 3
# The name of each model's last linear layer, for comparison.
TIMM = {
    "test_resnet": "fc",
    "test_vit": "head",
    "test_convnext": "head.fc",
    "test_efficientnet": "classifier",
    "test_mambaout": "head.fc",
    "mobilenetv4_conv_small_035": "classifier",
}
TORCHVISION = {
    "resnet18": "fc",
    "mobilenet_v3_small": "classifier.3",
    "efficientnet_b0": "classifier.1",
    "convnext_tiny": "classifier.2",
    "shufflenet_v2_x0_5": "fc",
    "swin_t": "head",
    "regnet_y_400mf": "fc",
    "densenet121": "classifier",
}


def check(model, layer, size):
    torch.manual_seed(0)
    images = torch.randn(12, 3, size, size)
    found = collapse_of(model, [(images, LABELS)])
    body, last = copy.deepcopy(model).eval(), model.get_submodule(layer)
    body.set_submodule(layer, nn.Identity())
    with torch.no_grad():
        expected = measure_collapse(body(images), LABELS, last.weight, last.bias)
    for name in ("nc1", "nc2", "nc3", "nc4", "accuracy"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    torch.manual_seed(0)
    check(timm.create_model(name, num_classes=5), TIMM[name], timm.get_pretrained_cfg(name).input_size[1])


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    torch.manual_seed(0)
    check(torchvision.models.get_model(name, num_classes=5), TORCHVISION[name], 64)


def test_a_model_without_a_linear_layer_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"It has no linear layer; pass layer= and num_classes="):
        collapse_of(torchvision.models.squeezenet1_1(num_classes=5), [(torch.randn(12, 3, 64, 64), LABELS)])
