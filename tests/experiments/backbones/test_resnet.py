import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from guided_collapse.experiments.backbones.resnet import ResNet
from tests.experiments.backbones.cases import images, num_parameters

# What torchvision's resnet18, resnet34 and resnet50 have without their classifier of 1000 classes.
PUBLISHED = {18: 11_689_512 - 513_000, 34: 21_797_672 - 513_000, 50: 25_557_032 - 2_049_000}
BLOCKS = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}


def slow_features(model, inputs, depth, stem):
    """Follows the layer table of He et al. literally, for a network whose BatchNorm has its initial statistics."""
    convolutions = iter([module.weight for module in model.modules() if isinstance(module, nn.Conv2d)])

    def convolve(x, stride, padding):
        return functional.conv2d(x, next(convolutions), stride=stride, padding=padding) / math.sqrt(1 + 1e-5)

    if stem == "imagenet":
        x = functional.max_pool2d(convolve(inputs, 2, 3).relu(), 3, stride=2, padding=1)
    else:
        x = convolve(inputs, 1, 1).relu()
    for stage, num_blocks in enumerate(BLOCKS[depth]):
        for block in range(num_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            if depth == 50:
                y = convolve(convolve(convolve(x, 1, 0).relu(), stride, 1).relu(), 1, 0)
                changes = block == 0
            else:
                y = convolve(convolve(x, stride, 1).relu(), 1, 1)
                changes = stage > 0 and block == 0
            x = (y + (convolve(x, stride, 0) if changes else x)).relu()
    assert next(convolutions, None) is None
    return x.flatten(2).sum(dim=2) / (x.shape[2] * x.shape[3])


@pytest.mark.parametrize("depth", [18, 34, 50])
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_features_against_the_layer_table(depth, stem):
    model = ResNet(depth, stem=stem, width=0.1).double().eval()
    inputs = images(2, 40).double()
    torch.testing.assert_close(model(inputs), slow_features(model, inputs, depth, stem))


@pytest.mark.parametrize("depth", [18, 34, 50])
def test_number_of_parameters_of_the_ordinary_form(depth):
    with torch.device("meta"):
        ordinary, free = ResNet(depth, affine=True), ResNet(depth)
        small_stem = ResNet(depth, stem="cifar")
    assert num_parameters(ordinary) == PUBLISHED[depth]
    # Without a scale and a shift for every output of every convolution.
    outputs = sum(parameter.shape[0] for parameter in free.parameters())
    assert num_parameters(free) == PUBLISHED[depth] - 2 * outputs
    assert num_parameters(small_stem) == num_parameters(free) - 3 * 64 * (49 - 9)
    assert ordinary.feature_dim == {18: 512, 34: 512, 50: 2048}[depth]


@pytest.mark.parametrize("width", [0.125, 0.3, 2.0])
def test_width_scales_every_layer(width):
    with torch.device("meta"):
        full, scaled = ResNet(50), ResNet(50, width=width, in_channels=1)
    for parameter, wide in zip(list(scaled.parameters())[1:], list(full.parameters())[1:], strict=True):
        for size, full_size in zip(parameter.shape[:2], wide.shape[:2], strict=True):
            assert abs(size - width * full_size) <= 2  # a bottleneck's outputs are four times a rounded number
        assert parameter.shape[2:] == wide.shape[2:]
    assert next(scaled.parameters()).shape[1] == 1
    assert scaled.feature_dim == 4 * round(512 * width)


def test_a_linear_layer_gives_as_many_features_as_asked_for():
    model = ResNet(18, width=0.25, feature_dim=16, affine=True)
    pooled = {}
    model.stages.register_forward_hook(lambda _, __, maps: pooled.update(features=maps.mean(dim=(2, 3))))
    features = model(images(4, 32))
    assert features.shape == (4, 16) == (4, model.feature_dim)
    assert torch.equal(features, pooled["features"] @ model.linear.weight.T + model.linear.bias)
    assert ResNet(18, width=0.25, feature_dim=16).linear.bias is None
