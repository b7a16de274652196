"""Residual networks (He et al., 2016): 18 and 34 layers of basic blocks, 50 of bottlenecks."""

from typing import get_args

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones.backbone import ImageBackbone, initialize, scaled
from guided_collapse.experiments.backbones.declared import Stem

BLOCKS_OF_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
CHANNELS_OF_STAGES = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4


class ResNet(ImageBackbone):
    """A ResNet up to its global average pool, or to a linear layer behind it; convolutions have no bias.

    Args:
        depth: 18, 34 (basic blocks) or 50 (bottlenecks, with the stride on their 3x3 convolution).
        stem: "imagenet" is a 7x7 convolution and a 3x3 max-pool, both of stride 2, as in the paper's experiments, those on 32x32
            images too; "cifar" is a 3x3 convolution of stride 1.
        width: factor on the channels of all stages, 64 to 512, each rounded to the nearest whole number, at least 1. A bottleneck
            gives out four times as many.
        affine: whether BatchNorm learns a scale and a shift, and the linear layer a bias: the ordinary form. AGD and the paper need
            the form without.
        feature_dim: d, the number of features of a linear layer behind the pool; None has none, and d channels of the last stage.
        in_channels: channels of the images.
        generator: source of the initial weights; None takes torch's global generator.

    Raises:
        ValueError: for an unknown depth or stem, or sizes that are not positive.
    """

    def __init__(
        self,
        depth: int,
        *,
        stem: Stem = "imagenet",
        width: float = 1.0,
        affine: bool = False,
        feature_dim: int | None = None,
        in_channels: int = 3,
        generator: torch.Generator | None = None,
    ) -> None:
        if depth not in BLOCKS_OF_STAGES:
            raise ValueError(f"depth must be one of {', '.join(map(str, BLOCKS_OF_STAGES))}; got {depth!r}.")
        if stem not in get_args(Stem):
            raise ValueError(f"stem must be one of {', '.join(map(repr, get_args(Stem)))}; got {stem!r}.")
        channels = [scaled(num_channels, width) for num_channels in CHANNELS_OF_STAGES]
        expansion = BOTTLENECK_EXPANSION if depth == 50 else 1
        # Smaller images are a single pixel before the last stage.
        smallest_size = 17 if stem == "imagenet" else 5
        outputs = expansion * channels[-1]
        super().__init__(outputs if feature_dim is None else feature_dim, in_channels=in_channels, smallest_size=smallest_size)
        self.stem = _stem(stem, in_channels, channels[0], affine)
        self.stages = nn.Sequential()
        inputs = channels[0]
        for index, (inner, num_blocks) in enumerate(zip(channels, BLOCKS_OF_STAGES[depth], strict=True)):
            strides = [1 if index == 0 else 2] + [1] * (num_blocks - 1)
            stage = nn.Sequential()
            for stride in strides:
                stage.append(Residual(inputs, inner, expansion * inner, stride=stride, bottleneck=depth == 50, affine=affine))
                inputs = expansion * inner
            self.stages.append(stage)
        self.linear = None if feature_dim is None else nn.Linear(outputs, feature_dim, bias=affine)
        initialize(self, generator)

    def _features(self, images: Tensor) -> Tensor:
        pooled = self.stages(self.stem(images)).mean(dim=(2, 3))
        return pooled if self.linear is None else self.linear(pooled)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)): two 3x3 convolutions in the branch, or 1x1, 3x3 and 1x1 in a bottleneck's.

    The shortcut is the identity, or a 1x1 convolution where the shape changes.
    """

    def __init__(self, inputs: int, inner: int, outputs: int, *, stride: int, bottleneck: bool, affine: bool) -> None:
        super().__init__()
        if bottleneck:
            layers = [(inputs, inner, 1, 1), (inner, inner, 3, stride), (inner, outputs, 1, 1)]
        else:
            layers = [(inputs, inner, 3, stride), (inner, outputs, 3, 1)]
        self.branch = nn.Sequential()
        for layer in layers:
            if len(self.branch) > 0:
                self.branch.append(nn.ReLU(inplace=True))
            self.branch.extend(_convolution(*layer, affine))
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.extend(_convolution(inputs, outputs, 1, stride, affine))

    def forward(self, inputs: Tensor) -> Tensor:
        """(num_samples, inputs, height, width) to (num_samples, outputs, height / stride, width / stride), rounded up."""
        return torch.relu(self.branch(inputs) + self.shortcut(inputs))


def _stem(stem: Stem, inputs: int, outputs: int, affine: bool) -> nn.Sequential:
    if stem == "cifar":
        return nn.Sequential(*_convolution(inputs, outputs, 3, 1, affine), nn.ReLU(inplace=True))
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    return nn.Sequential(*_convolution(inputs, outputs, 7, 2, affine), nn.ReLU(inplace=True), pool)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, affine: bool) -> list[nn.Module]:
    """A convolution with its BatchNorm."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, affine=affine)]
