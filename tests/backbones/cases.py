"""Narrow networks, one for each form, and images for them."""

import torch

from guided_collapse.backbones.build import build_backbone

OPTIONS = {
    "resnet18": {"name": "resnet18", "width": 0.0625},
    "resnet34": {"name": "resnet34", "width": 0.0625, "stem": "cifar"},
    "resnet50": {"name": "resnet50", "width": 0.0625},
    "vgg13": {"name": "vgg13", "width": 0.0625},
    "small": {"name": "small", "in_channels": 3},
    "small without BatchNorm": {"name": "small", "in_channels": 3, "batch_norm": False},
}


def build(case, **options):
    torch.manual_seed(0)
    return build_backbone(**(OPTIONS[case] | options))


def images(num_samples=4, size=32, channels=3):
    return torch.randn(num_samples, channels, size, size, generator=torch.Generator().manual_seed(1))


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())
