"""The base class of backbones, and the unconstrained feature model, which has no network."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional


class Backbone(nn.Module):
    """Maps inputs to features, (num_samples, feature_dim)."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim


class ImageBackbone(Backbone, ABC):
    """A convolutional network for images of at least smallest_size x smallest_size."""

    def __init__(self, feature_dim: int, *, in_channels: int, smallest_size: int) -> None:
        super().__init__(feature_dim)
        self.in_channels, self.smallest_size = in_channels, smallest_size

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the features of a batch of floating-point images, (num_samples, in_channels, height, width)."""
        if not inputs.is_floating_point() or inputs.ndim != 4 or inputs.shape[1] != self.in_channels:
            raise ValueError(
                f"images must be floating-point (num_samples, in_channels, height, width) with in_channels={self.in_channels}; got "
                f"{inputs.dtype} of shape {tuple(inputs.shape)}. Normalize or reshape them, or use a backbone for their channels."
            )
        if min(inputs.shape[2:]) < self.smallest_size:
            raise ValueError(
                f"images must be at least {self.smallest_size} x {self.smallest_size} for this {type(self).__name__}; "
                f"got {inputs.shape[2]} x {inputs.shape[3]}. Enlarge them, or choose a backbone that downsamples less."
            )
        return self._features(inputs)

    @abstractmethod
    def _features(self, images: Tensor) -> Tensor:
        """Returns the features of images that passed the checks, (num_samples, feature_dim)."""


class UnconstrainedFeatures(Backbone):
    """One free feature vector per sample; inputs are sample indices. Usually every step takes all samples at once.

    The initial entries are drawn from N(0, 1/feature_dim), so the rows have norms of about 1; the paper does not state its choice.
    AGD treats the features as a weight with num_samples outputs and feature_dim inputs.
    """

    def __init__(self, num_samples: int, feature_dim: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__(feature_dim)
        self.num_samples = num_samples
        initial = nn.init.normal_(torch.empty(num_samples, feature_dim), std=feature_dim**-0.5, generator=generator)
        self.features = nn.Parameter(initial)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the features, (n, feature_dim), of the samples with these indices, (n,), int64 in 0 ... num_samples - 1."""
        return functional.embedding(inputs, self.features)


def scaled(num_channels: int, width: float) -> int:
    """Returns width x num_channels, rounded to the nearest integer (halves to even), but at least 1."""
    return max(1, round(width * num_channels))


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws every convolution and linear weight from N(0, 2/fan_out), as He et al. do, and sets biases to zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
