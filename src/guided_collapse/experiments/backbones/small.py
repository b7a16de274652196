"""A small convolutional network that trains in seconds on a CPU."""

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones.backbone import ImageBackbone, initialize, scaled

HIDDEN_CHANNELS = (16, 32, 64)


class SmallConvNet(ImageBackbone):
    """Three 3x3 convolutions with a 2x2 max-pool after each of the first two, the average over positions, and a linear layer.

    For 8x8 digits and 28x28 clothes; any image of at least 4 x 4 will do. The linear layer takes 64 channels, so the features have
    rank 64 at most, whatever `feature_dim` is, unless `width` is larger.

    Args:
        feature_dim: d.
        in_channels: channels of the images.
        width: factor on the channels of all convolutions, 16 to 64, each rounded to the nearest whole number, at least 1.
        batch_norm: whether a BatchNorm follows each convolution. Without it, the features of a sample depend on that sample alone
            in training mode too.
        affine: whether layers have biases and BatchNorm learns a scale and a shift: the ordinary form. AGD needs the form without.
        generator: source of the initial weights; None takes torch's global generator.

    Raises:
        ValueError: for sizes that are not positive.
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
        super().__init__(feature_dim, in_channels=in_channels, smallest_size=2 ** (len(HIDDEN_CHANNELS) - 1))
        self.convolutions = nn.Sequential()
        inputs = in_channels
        for outputs in (scaled(num_channels, width) for num_channels in HIDDEN_CHANNELS):
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
