"""Narrow networks, one of each kind, and images for them."""

from typing import Any

import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones import build_backbone
from guided_collapse.experiments.backbones.backbone import Backbone

OPTIONS: dict[str, dict[str, Any]] = {
    "resnet18": {"name": "resnet18", "width": 0.0625},
    "resnet34": {"name": "resnet34", "width": 0.0625, "stem": "cifar"},
    "resnet50": {"name": "resnet50", "width": 0.0625},
    "vgg13": {"name": "vgg13", "width": 0.0625},
    "small": {"name": "small", "in_channels": 3},
    "small without BatchNorm": {"name": "small", "in_channels": 3, "batch_norm": False},
}


def build(case: str, **options: Any) -> Backbone:
    torch.manual_seed(0)
    return build_backbone(**(OPTIONS[case] | options))


def images(num_samples: int = 4, size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(num_samples, channels, size, size, generator=torch.Generator().manual_seed(1))


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
