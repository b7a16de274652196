"""Networks by name."""

import torch

from guided_collapse.backbones.backbone import ImageBackbone
from guided_collapse.backbones.declared import BACKBONES
from guided_collapse.backbones.resnet import Stem
from guided_collapse.lazy import imported


def build_backbone(
    name: str,
    *,
    in_channels: int | None = None,
    stem: Stem | None = None,
    width: float | None = None,
    affine: bool | None = None,
    batch_norm: bool | None = None,
    feature_dim: int | None = None,
    generator: torch.Generator | None = None,
) -> ImageBackbone:
    """The network of that name.

    An option left at None keeps the network's own default; one that the network does not have is refused, never ignored.

    Args:
        name: "resnet18", "resnet34", "resnet50", "vgg13" or "small".
        in_channels: channels of the images; all networks.
        stem: "imagenet" or "cifar"; ResNets.
        width: factor on all channel counts; ResNets and VGG-13.
        affine: whether the network takes its ordinary form, with affine BatchNorm and biases where it has them; all networks.
        batch_norm: whether there is BatchNorm; the small network.
        feature_dim: d; the small network. The others have what their width gives.
        generator: source of the initial weights; None takes torch's global generator.

    Raises:
        ValueError: for an unknown name, an option that the network does not have, or a value it refuses.
    """
    if name not in BACKBONES:
        raise ValueError(f"the backbone must be one of {', '.join(BACKBONES)}; got {name!r}.")
    options = {
        "in_channels": in_channels,
        "stem": stem,
        "width": width,
        "affine": affine,
        "batch_norm": batch_norm,
        "feature_dim": feature_dim,
    }
    given = {option: value for option, value in options.items() if value is not None}
    declared = BACKBONES[name]
    for option, value in given.items():
        if option not in declared.options:
            raise ValueError(
                f"{name} has no option {option}; got {option}={value!r}. Its options are {', '.join(sorted(declared.options))}."
            )
    backbone: ImageBackbone = imported(declared.built_by)(*declared.arguments, **given, generator=generator)
    return backbone
