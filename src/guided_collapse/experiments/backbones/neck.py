"""Layers between a timm model, or given features, and a head."""

from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones.backbone import Backbone, initialize

NeckKind = Literal["none", "linear", "mlp"]
HIDDEN_UNITS = 512


class Neck(Backbone):
    """No layer, a linear layer, or a multilayer perceptron with one hidden layer of HIDDEN_UNITS units and ReLU.

    Args:
        neck: "none", "linear" or "mlp".
        in_channels: the width of the given features.
        feature_dim: the width of the output; if None, the width of the given features.
        affine: whether layers have biases.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        neck: NeckKind = "none",
        feature_dim: int | None = None,
        affine: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        if neck not in get_args(NeckKind):
            raise ValueError(f"neck must be one of {', '.join(get_args(NeckKind))}; got {neck!r}.")
        super().__init__(in_channels if feature_dim is None else feature_dim)
        widths = {"none": [], "linear": [in_channels, self.feature_dim], "mlp": [in_channels, HIDDEN_UNITS, self.feature_dim]}[neck]
        self.layers = nn.Sequential()
        for inputs, outputs in pairwise(widths):
            if len(self.layers) > 0:
                self.layers.append(nn.ReLU())
            self.layers.append(nn.Linear(inputs, outputs, bias=affine))
        initialize(self, generator)

    def forward(self, inputs: Tensor) -> Tensor:
        """Maps (num_samples, in_channels) to (num_samples, feature_dim)."""
        return self.layers(inputs)
