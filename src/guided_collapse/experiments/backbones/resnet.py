"""Residual networks (He et al., 2016): 18 and 34 layers with basic blocks, and 50 layers with bottlenecks."""

from typing import get_args

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones import Stem
from guided_collapse.experiments.backbones.backbone import ImageBackbone, initialize, scaled

BLOCKS_PER_STAGE = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
CHANNELS_PER_STAGE = (64, 128, 256, 512)
BOTTLENECK_EXPANSION = 4


class ResNet(ImageBackbone):
    """A ResNet up to its global average pool, optionally followed by a linear layer; convolutions have no bias.

    Depth 50 has bottlenecks, with the stride on their 3x3 convolution and four times as many output channels. The stem "imagenet"
    is a 7x7 convolution and a 3x3 max-pool, both of stride 2, as in all of the paper's experiments, even on 32x32 images. The stem
    "cifar" is a 3x3 convolution of stride 1. Arguments: see `build_backbone`.
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
        if stem not in get_args(Stem):
            raise ValueError(f"stem must be one of {', '.join(map(repr, get_args(Stem)))}; got {stem!r}.")
        channels = [scaled(num_channels, width) for num_channels in CHANNELS_PER_STAGE]
        expansion = BOTTLENECK_EXPANSION if depth == 50 else 1
        outputs = expansion * channels[-1]
        smallest_size = 17 if stem == "imagenet" else 5  # smaller images shrink to a single pixel before the last stage
        super().__init__(outputs if feature_dim is None else feature_dim, in_channels=in_channels, smallest_size=smallest_size)
        kernel, stride = (3, 1) if stem == "cifar" else (7, 2)
        self.stem = nn.Sequential(*_convolution(in_channels, channels[0], kernel, stride, affine), nn.ReLU(inplace=True))
        if stem == "imagenet":
            self.stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stages = nn.Sequential()
        inputs = channels[0]
        for index, (inner, num_blocks) in enumerate(zip(channels, BLOCKS_PER_STAGE[depth], strict=True)):
            stage = nn.Sequential()
            for block in range(num_blocks):
                stride = 2 if index > 0 and block == 0 else 1
                stage.append(Residual(inputs, inner, expansion * inner, stride=stride, bottleneck=depth == 50, affine=affine))
                inputs = expansion * inner
            self.stages.append(stage)
        self.linear = None if feature_dim is None else nn.Linear(outputs, feature_dim, bias=affine)
        initialize(self, generator)

    def _features(self, images: Tensor) -> Tensor:
        pooled = self.stages(self.stem(images)).mean(dim=(2, 3))
        return pooled if self.linear is None else self.linear(pooled)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); the branch is two 3x3 convolutions or, in a bottleneck, a 1x1, a 3x3 and a 1x1 convolution.

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
        """Maps (num_samples, inputs, height, width) to (num_samples, outputs, ceil(height / stride), ceil(width / stride))."""
        return torch.relu(self.branch(inputs) + self.shortcut(inputs))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, affine: bool) -> list[nn.Module]:
    """Returns a convolution and the BatchNorm layer after it."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs, affine=affine)]
