"""The networks: their names, how they are built, and which options they have. The one place that names them; it needs no torch."""

from dataclasses import dataclass
from typing import Any


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


BACKBONES: dict[str, BackboneDeclaration] = {}
"""By name, in the order in which they are listed."""


def declare(backbone: BackboneDeclaration) -> None:
    """Adds a network."""
    BACKBONES[backbone.name] = backbone


_EVERY = ("in_channels", "affine")

for _depth in (18, 34, 50):
    declare(
        BackboneDeclaration(
            f"resnet{_depth}", "guided_collapse.backbones.resnet:ResNet", (*_EVERY, "stem", "width"), arguments=(_depth,)
        )
    )
declare(BackboneDeclaration("vgg13", "guided_collapse.backbones.vgg:VGG13", (*_EVERY, "width")))
declare(BackboneDeclaration("small", "guided_collapse.backbones.small:SmallConvNet", (*_EVERY, "batch_norm", "feature_dim")))
