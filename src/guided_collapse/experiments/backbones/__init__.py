"""Networks that turn images into features, by name. Does not import torch; each network is imported when it is built."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guided_collapse.lazy import imported

if TYPE_CHECKING:
    import torch

    from guided_collapse.experiments.backbones.backbone import Backbone

Stem = Literal["imagenet", "cifar"]


@dataclass(frozen=True)
class BackboneDeclaration:
    """How to build a network: its "module:class", its keyword arguments besides `generator`, and its positional arguments."""

    built_by: str
    options: tuple[str, ...]
    arguments: tuple[Any, ...] = ()


_HERE = "guided_collapse.experiments.backbones"
_COMMON = ("in_channels", "affine", "width")
_NECK = ("in_channels", "affine", "feature_dim", "neck")

BACKBONES: dict[str, BackboneDeclaration] = {
    **{
        f"resnet{depth}": BackboneDeclaration(f"{_HERE}.resnet:ResNet", (*_COMMON, "stem", "feature_dim"), (depth,))
        for depth in (18, 34, 50)
    },
    "vgg13": BackboneDeclaration(f"{_HERE}.plain:VGG13", _COMMON),
    "small": BackboneDeclaration(f"{_HERE}.plain:SmallConvNet", (*_COMMON, "batch_norm", "feature_dim")),
    "timm": BackboneDeclaration(
        f"{_HERE}.pretrained:TimmBackbone",
        (*_NECK, "image_size", "pretrained", "weights", "freeze", "freeze_batch_norm", "backbone_rate"),
    ),
    "none": BackboneDeclaration(f"{_HERE}.neck:Neck", _NECK),
}
"""Every network by its name on the command line and in records. Add your own here.

"timm" stands for timm:MODEL, and "none" for given features.
"""


NETWORK_FIELDS = tuple(
    {option: None for network in BACKBONES.values() for option in network.options if option not in ("in_channels", "image_size")}
)
"""The fields of the configuration that only some networks take."""


def build_backbone(name: str, *, generator: "torch.Generator | None" = None, **options: Any) -> "Backbone":
    """Returns the network of this name.

    Args:
        name: a key of `BACKBONES`, or timm:MODEL.
        generator: source of the initial weights; if None, torch's global generator.
        options: options that the network declares; a value of None keeps the network's default:

            in_channels: channels of the images, or the width of given features.
            stem: "imagenet" or "cifar"; for ResNets.
            width: factor on all channel counts, which are rounded to integers of at least 1; for networks of this package.
            affine: whether BatchNorm is affine and layers have biases, as is usual; the paper and AGD do without both.
            batch_norm: whether to use BatchNorm; for the small network.
            feature_dim: dimension of the features; for the small network, a neck, and ResNets, which then end in a linear layer.
            neck: "none", "linear" or "mlp"; for timm models and given features.
            image_size, pretrained, weights, freeze, freeze_batch_norm, backbone_rate: see `TimmBackbone`.
    """
    family, _, model = name.partition(":")
    if family not in BACKBONES or (family == "timm") != bool(model):
        legal = ", ".join("timm:MODEL" if known == "timm" else known for known in BACKBONES)
        raise ValueError(f"backbone must be one of {legal}; got {name!r}.")
    given = {option: value for option, value in options.items() if value is not None}
    declared = BACKBONES[family]
    if unknown := [f"{option}={value!r}" for option, value in given.items() if option not in declared.options]:
        legal = ", ".join(sorted(declared.options))
        raise ValueError(f"options of {name} must be among {legal}; got {', '.join(unknown)}.")
    arguments = (model,) if model else declared.arguments
    return imported(declared.built_by)(*arguments, **given, generator=generator)
