"""What all backbones share: the feature width, input checks, channel counts, initial weights."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """Maps inputs to features, (num_samples, feature_dim)."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        check_size("feature_dim", feature_dim)
        self.feature_dim = feature_dim


class ImageBackbone(Backbone, ABC):
    """A convolutional network for images of at least smallest_size x smallest_size."""

    def __init__(self, feature_dim: int, *, in_channels: int, smallest_size: int) -> None:
        super().__init__(feature_dim)
        check_size("in_channels", in_channels)
        self.in_channels, self.smallest_size = in_channels, smallest_size

    def forward(self, inputs: Tensor) -> Tensor:
        """The features of a batch of floating-point images, (num_samples, in_channels, height, width).

        Raises:
            ValueError: for images of another type, number of channels, or too small.
        """
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
            received = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(
                f"images must be a floating-point tensor; got {received}. Normalize them first, or use images.float()."
            )
        if inputs.ndim != 4 or inputs.shape[1] != self.in_channels:
            raise ValueError(
                f"images must be (num_samples, in_channels, height, width) with in_channels={self.in_channels}; "
                f"got {tuple(inputs.shape)}. Reshape them, or build the backbone with their number of channels."
            )
        if min(inputs.shape[2:]) < self.smallest_size:
            raise ValueError(
                f"images must be at least {self.smallest_size} x {self.smallest_size} for this {type(self).__name__}; "
                f"got {inputs.shape[2]} x {inputs.shape[3]}. Enlarge them, or choose a backbone that downsamples less."
            )
        return self._features(inputs)

    @abstractmethod
    def _features(self, images: Tensor) -> Tensor:
        """The features of images that passed the checks, (num_samples, feature_dim)."""


def check_size(name: str, size: int) -> None:
    """Rejects a size that is not a positive integer."""
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} must be an integer, at least 1; got {size!r}.")


def scaled(num_channels: int, width: float) -> int:
    """width x num_channels, rounded to the nearest integer (halves to even), at least 1."""
    if not (width > 0 and math.isfinite(width)):
        raise ValueError(f"width must be a positive, finite number; got {width}.")
    return max(1, round(width * num_channels))


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws every convolution and linear weight from N(0, 2/fan_out), as He et al. do, and sets biases to zero.

    fan_out = outputs x kernel positions preserves the size of gradients through ReLUs. AGD draws its own weights instead.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
