"""Initial weights of the networks; AGD draws its own in their place."""

import torch
from torch import nn


@torch.no_grad()
def initialise(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws every convolution and linear weight from N(0, 2/fan_out), as He et al. do, and sets biases to zero.

    fan_out = outputs x kernel positions keeps the size of gradients through ReLUs.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
