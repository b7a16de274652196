"""Plain stacks of 3x3 convolutions: VGG-13 (Simonyan and Zisserman, 2015), and a small network that trains in seconds on a CPU."""

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones.backbone import ImageBackbone, initialize, scaled

VGG_CHANNELS = (64, 128, 256, 512, 512)
SMALL_CHANNELS = (16, 32, 64)


class VGG13(ImageBackbone):
    """Five stages of two 3x3 convolutions with BatchNorm and a 2x2 max-pool; global average pooling replaces the dense layers.

    Images must be at least 32 x 32. Arguments: see `build_backbone`.
    """

    def __init__(
        self, *, width: float = 1.0, affine: bool = False, in_channels: int = 3, generator: torch.Generator | None = None
    ) -> None:
        channels = [scaled(num_channels, width) for num_channels in VGG_CHANNELS]
        super().__init__(channels[-1], in_channels=in_channels, smallest_size=2 ** len(channels))
        self.stages = nn.Sequential()
        inputs = in_channels
        for outputs in channels:
            stage = nn.Sequential()
            for _ in range(2):
                convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=affine)
                stage.extend([convolution, nn.BatchNorm2d(outputs, affine=affine), nn.ReLU(inplace=True)])
                inputs = outputs
            self.stages.append(stage.append(nn.MaxPool2d(2)))
        initialize(self, generator)

    def _features(self, images: Tensor) -> Tensor:
        return self.stages(images).mean(dim=(2, 3))


class SmallConvNet(ImageBackbone):
    """Three 3x3 convolutions with a 2x2 max-pool after each of the first two, global average pooling, and a linear layer.

    Images must be at least 4 x 4. The linear layer has 64 x `width` inputs, which bound the rank of the features.
    Without BatchNorm, the features of a sample depend on that sample alone, even in training mode. Arguments: see `build_backbone`.
    """

    def __init__(
        self,
        feature_dim: int = 64,
        *,
        in_channels: int = 1,
        width: float = 1.0,
        batch_norm: bool = True,
        affine: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(feature_dim, in_channels=in_channels, smallest_size=2 ** (len(SMALL_CHANNELS) - 1))
        self.convolutions = nn.Sequential()
        inputs = in_channels
        for outputs in (scaled(num_channels, width) for num_channels in SMALL_CHANNELS):
            if len(self.convolutions) > 0:
                self.convolutions.append(nn.MaxPool2d(2))
            self.convolutions.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=affine))
            if batch_norm:
                self.convolutions.append(nn.BatchNorm2d(outputs, affine=affine))
            self.convolutions.append(nn.ReLU(inplace=True))
            inputs = outputs
        self.linear = nn.Linear(inputs, feature_dim, bias=affine)
        initialize(self, generator)

    def _features(self, images: Tensor) -> Tensor:
        return self.linear(self.convolutions(images).mean(dim=(2, 3)))
