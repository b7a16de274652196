"""The networks: their names, how they are built, and which options they have. The one place that names them; it loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from guided_collapse.lazy import imported

if TYPE_CHECKING:
    import torch

    from guided_collapse.experiments.backbones.backbone import ImageBackbone

Stem = Literal["imagenet", "cifar"]


@dataclass(frozen=True)
class BackboneDeclaration:
    """One network.

    Attributes:
        name: on the command line and in records.
        built_by: "module:class".
        options: keyword arguments that it takes, beside `generator`; every network takes in_channels and affine.
        arguments: what comes before them.
    """

    name: str
    built_by: str
    options: tuple[str, ...]
    arguments: tuple[Any, ...] = ()


class BuiltAs(NamedTuple):
    """The name and the options by which a network was built, so that it can be built again."""

    name: str
    options: Mapping[str, Any]


BACKBONES: dict[str, BackboneDeclaration] = {}
"""By name, in the order in which they are listed."""


def declare(backbone: BackboneDeclaration) -> None:
    """Adds a network."""
    BACKBONES[backbone.name] = backbone


_USUAL = ("in_channels", "affine", "width")

for _depth in (18, 34, 50):
    declare(
        BackboneDeclaration(
            f"resnet{_depth}",
            "guided_collapse.experiments.backbones.resnet:ResNet",
            (*_USUAL, "stem", "feature_dim"),
            arguments=(_depth,),
        )
    )
declare(BackboneDeclaration("vgg13", "guided_collapse.experiments.backbones.vgg:VGG13", _USUAL))
declare(
    BackboneDeclaration("small", "guided_collapse.experiments.backbones.small:SmallConvNet", (*_USUAL, "batch_norm", "feature_dim"))
)


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
    """The network of that name.

    An option left at None keeps the network's own default; one that the network does not have is refused, never ignored.

    Args:
        name: one of those that are declared here.
        in_channels: channels of the images; all networks.
        stem: "imagenet" or "cifar"; ResNets.
        width: factor on all channel counts; all networks.
        affine: whether the network takes its ordinary form, with affine BatchNorm and biases where it has them; all networks.
        batch_norm: whether there is BatchNorm; the small network.
        feature_dim: d; the small network, and ResNets, which then end in a linear layer. The others have what their width gives.
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
    backbone.built_as = BuiltAs(name, given)
    return backbone
