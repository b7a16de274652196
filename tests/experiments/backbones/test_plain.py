import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from guided_collapse.experiments.backbones.plain import VGG13, SmallConvNet
from tests.experiments.backbones.cases import images, num_parameters

# VGG-13: inputs and outputs of the ten 3x3 convolutions in configuration B of Simonyan and Zisserman.
TABLE = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
# torchvision's vgg13_bn without its three linear layers.
PUBLISHED = 133_053_736 - (25_088 * 4096 + 4096) - (4096 * 4096 + 4096) - (4096 * 1000 + 1000)


def test_number_of_parameters():
    weights = sum(9 * inputs * outputs for inputs, outputs in TABLE)
    outputs = sum(outputs for _, outputs in TABLE)
    with torch.device("meta"):
        ordinary, free = VGG13(affine=True), VGG13()
    assert num_parameters(ordinary) == weights + 3 * outputs == PUBLISHED
    assert num_parameters(free) == weights
    assert free.feature_dim == 512


@pytest.mark.parametrize("size", [32, 75])
def test_features_against_the_layer_table(size):
    model = VGG13(width=0.125).double().eval()
    weights = list(model.parameters())
    assert [tuple(weight.shape) for weight in weights] == [
        (outputs // 8, 3 if inputs == 3 else inputs // 8, 3, 3) for inputs, outputs in TABLE
    ]
    x = inputs = images(2, size).double()
    for index, weight in enumerate(weights):
        x = (functional.conv2d(x, weight, padding=1) / math.sqrt(1 + 1e-5)).relu()
        if index % 2 == 1:
            x = functional.max_pool2d(x, 2)
    torch.testing.assert_close(model(inputs), x.flatten(2).sum(dim=2) / (x.shape[2] * x.shape[3]))


def test_small_features_against_the_layers_one_by_one():
    model = SmallConvNet(7, batch_norm=False, affine=True).double()
    first, second, third = (layer for layer in model.convolutions if isinstance(layer, nn.Conv2d))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    inputs = images(3, 11, 1).double()
    x = functional.max_pool2d(functional.conv2d(inputs, first.weight, first.bias, padding=1).relu(), 2)
    x = functional.max_pool2d(functional.conv2d(x, second.weight, second.bias, padding=1).relu(), 2)
    x = functional.conv2d(x, third.weight, third.bias, padding=1).relu().mean(dim=3).mean(dim=2)
    torch.testing.assert_close(model(inputs), x @ model.linear.weight.T + model.linear.bias)
