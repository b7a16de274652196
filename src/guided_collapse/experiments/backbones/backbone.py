"""What all backbones share: the width of their features, what they refuse, numbers of channels, initial weights."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones.declared import BuiltAs


class Backbone(nn.Module, ABC):
    """Maps inputs to features, (num_samples, feature_dim)."""

    feature_dim: int
    """d, the width of the features."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        check_size("feature_dim", feature_dim)
        self.feature_dim = feature_dim

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """The features of a batch, (num_samples, feature_dim)."""


class ImageBackbone(Backbone):
    """A convolutional network: images in, features out.

    Args:
        feature_dim: d.
        in_channels: channels of the images.
        smallest_size: height and width, at least, of the images.
    """

    built_as: BuiltAs | None = None
    """How `build_backbone` has built it; None if it was made in another way."""

    def __init__(self, feature_dim: int, *, in_channels: int, smallest_size: int) -> None:
        super().__init__(feature_dim)
        check_size("in_channels", in_channels)
        self.in_channels = in_channels
        self.smallest_size = smallest_size

    def forward(self, inputs: Tensor) -> Tensor:
        """The features of a batch.

        Args:
            inputs: images, (num_samples, in_channels, height, width), floating-point.

        Returns:
            (num_samples, feature_dim).

        Raises:
            ValueError: for images that do not fit.
        """
        self._check(inputs)
        return self._features(inputs)

    @abstractmethod
    def _features(self, images: Tensor) -> Tensor:
        """The features of images that were checked already, (num_samples, feature_dim)."""

    def _check(self, images: Tensor) -> None:
        if not isinstance(images, Tensor) or not images.is_floating_point():
            received = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise ValueError(
                f"images must be a floating-point tensor; got {received}. Normalize them first, or use images.float()."
            )
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ValueError(
                f"images must be (num_samples, in_channels, height, width) with in_channels={self.in_channels}; "
                f"got {tuple(images.shape)}. Reshape them, or build the backbone with their number of channels."
            )
        if min(images.shape[2:]) < self.smallest_size:
            raise ValueError(
                f"images must be at least {self.smallest_size} x {self.smallest_size} for this {type(self).__name__}; "
                f"got {images.shape[2]} x {images.shape[3]}. Enlarge them, or take a backbone that shrinks them less."
            )


def check_size(name: str, size: int) -> None:
    """Refuses a size that is not a positive whole number."""
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} must be a whole number, at least 1; got {size!r}.")


def scaled(num_channels: int, width: float) -> int:
    """width x num_channels, rounded to the nearest whole number (halves to the even one), and at least 1.

    Raises:
        ValueError: for a width that is not positive and finite.
    """
    if not (width > 0 and math.isfinite(width)):
        raise ValueError(f"width must be a positive, finite number; got {width}.")
    return max(1, round(width * num_channels))


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws every convolution and linear weight from N(0, 2/fan_out), as He et al. do, and sets biases to zero.

    fan_out = outputs x kernel positions keeps the size of gradients through ReLUs. AGD draws its own weights in their place.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
