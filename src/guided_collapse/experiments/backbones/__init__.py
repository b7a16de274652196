"""Networks that turn images into features, by name. This table loads no torch; each network is imported when it is built."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from guided_collapse.lazy import imported

if TYPE_CHECKING:
    import torch

    from guided_collapse.experiments.backbones.backbone import ImageBackbone

Stem = Literal["imagenet", "cifar"]


@dataclass(frozen=True)
class BackboneDeclaration:
    """One network: "module:class", the keyword arguments it takes besides `generator`, and its positional arguments."""

    built_by: str
    options: tuple[str, ...]
    arguments: tuple[Any, ...] = ()


_HERE = "guided_collapse.experiments.backbones"
_COMMON = ("in_channels", "affine", "width")

BACKBONES: dict[str, BackboneDeclaration] = {
    **{
        f"resnet{depth}": BackboneDeclaration(f"{_HERE}.resnet:ResNet", (*_COMMON, "stem", "feature_dim"), (depth,))
        for depth in (18, 34, 50)
    },
    "vgg13": BackboneDeclaration(f"{_HERE}.plain:VGG13", _COMMON),
    "small": BackboneDeclaration(f"{_HERE}.plain:SmallConvNet", (*_COMMON, "batch_norm", "feature_dim")),
}
"""Every network by its name on the command line and in records. Add your own here."""


def build_backbone(
    name: str,
    *,
    in_channels: int | None = None,
    stem: Stem | None = None,
    width: float | None = None,
    affine: bool | None = None,
    batch_norm: bool | None = None,
    feature_dim: int | None = None,
    generator: "torch.Generator | None" = None,
) -> "ImageBackbone":
    """The network of that name. An option left at None keeps the network's own default.

    Args:
        name: a key of `BACKBONES`.
        in_channels: channels of the images; all networks.
        stem: "imagenet" or "cifar"; ResNets.
        width: factor on all channel counts, which are rounded and at least 1; all networks.
        affine: True for the usual form, with affine BatchNorm and biases; AGD and the paper need the form without; all networks.
        batch_norm: whether to use BatchNorm; the small network.
        feature_dim: d; the small network, and ResNets, which then end in a linear layer. For the others, width determines it.
        generator: source of the initial weights; None takes torch's global generator.
    """
    if name not in BACKBONES:
        raise ValueError(f"backbone must be one of {', '.join(BACKBONES)}; got {name!r}.")
    options = {"in_channels": in_channels, "stem": stem, "width": width, "affine": affine}
    options |= {"batch_norm": batch_norm, "feature_dim": feature_dim}
    given = {option: value for option, value in options.items() if value is not None}
    declared = BACKBONES[name]
    if strangers := [f"{option}={value!r}" for option, value in given.items() if option not in declared.options]:
        legal = ", ".join(sorted(declared.options))
        raise ValueError(f"{name} must have options among {legal}; got {', '.join(strangers)}.")
    return imported(declared.built_by)(*declared.arguments, **given, generator=generator)
