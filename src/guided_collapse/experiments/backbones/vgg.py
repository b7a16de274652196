"""VGG-13 with BatchNorm (Simonyan and Zisserman, 2015), up to its last max-pool."""

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones.backbone import ImageBackbone, initialize, scaled

CHANNELS_OF_STAGES = (64, 128, 256, 512, 512)
CONVOLUTIONS_PER_STAGE = 2


class VGG13(ImageBackbone):
    """Five stages of two 3x3 convolutions and a 2x2 max-pool; average pooling to one position takes the place of the hidden layers.

    Images are at least 32 x 32: the five max-pools leave nothing of smaller ones.

    Args:
        width: factor on the channels of all stages, 64 to 512, each rounded to the nearest whole number, at least 1.
        affine: whether convolutions have a bias and BatchNorm learns a scale and a shift: the ordinary form. AGD and the paper need
            the form without.
        in_channels: channels of the images.
        generator: source of the initial weights; None takes torch's global generator.

    Raises:
        ValueError: for sizes that are not positive.
    """

    def __init__(
        self, *, width: float = 1.0, affine: bool = False, in_channels: int = 3, generator: torch.Generator | None = None
    ) -> None:
        channels = [scaled(num_channels, width) for num_channels in CHANNELS_OF_STAGES]
        super().__init__(channels[-1], in_channels=in_channels, smallest_size=2 ** len(channels))
        self.stages = nn.Sequential()
        inputs = in_channels
        for outputs in channels:
            stage = nn.Sequential()
            for _ in range(CONVOLUTIONS_PER_STAGE):
                convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=affine)
                stage.extend([convolution, nn.BatchNorm2d(outputs, affine=affine), nn.ReLU(inplace=True)])
                inputs = outputs
            self.stages.append(stage.append(nn.MaxPool2d(2)))
        initialize(self, generator)

    def _features(self, images: Tensor) -> Tensor:
        return self.stages(images).mean(dim=(2, 3))
