"""What `config.json` says of a shared model, and the model that it describes."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from guided_collapse.experiments.backbones.backbone import ImageBackbone
from guided_collapse.experiments.backbones import BACKBONES, build_backbone
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.records.fields import MaybeText, Numbers, Object, RecordError, Text, VersionedRecord
from guided_collapse.heads.head import Head
from guided_collapse.lazy import imported

FORMAT = 1
# Arguments of heads that are kept under another name.
KEPT_AS = {"center": "centering"}
Plain = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class ModelDescription(VersionedRecord):
    """A shared model, without its weights.

    Attributes:
        version: of this package.
        head: the name of its class, and its arguments.
        backbone: the name of its class; for a network of this package also the name and the options that build it.
        data: what it was trained on, in words; None if nobody said so.
        metrics: what was measured, by name.
    """

    SAYS = "a shared model"
    HEADER: ClassVar = {"format": FORMAT, "library": "guided-collapse"}

    version: Text
    head: Object
    backbone: Object
    data: MaybeText
    metrics: Numbers


def described_head(head: Head) -> dict[str, Plain]:
    """The class of a head and what it was made with, all but the generator.

    Raises:
        ValueError: for a class that is not declared, or does not keep one of its arguments.
    """
    name = type(head).__name__
    if _head_classes().get(name) is not type(head):
        raise ValueError(
            f"a shared head must be one that is declared, so that it can be made again; got {name}. "
            "Declare it: guided_collapse.experiments.heads.declare."
        )
    return {"class": name} | {option: _kept(head, option, default) for option, default in _options(type(head)).items()}


def described_backbone(backbone: nn.Module) -> dict[str, Any]:
    """The class of a backbone, and how it is built if it is a network of this package."""
    built_as = backbone.built_as if isinstance(backbone, ImageBackbone) else None
    rest = {} if built_as is None else {"name": built_as.name, "options": dict(built_as.options)}
    return {"class": type(backbone).__name__, **rest}


def head_of(description: ModelDescription) -> Head:
    """The head that a description names, untrained.

    Raises:
        RecordError: for a class that is not declared, or arguments that it refuses.
    """
    given = dict(description.head)
    name = given.pop("class", None)
    classes = _head_classes()
    if name not in classes:
        raise RecordError(f"the head must be one of {', '.join(classes)}; got {name!r}")
    unknown = given.keys() - _options(classes[name]).keys()
    if unknown:
        raise RecordError(f"{name} has no argument {', '.join(sorted(unknown))}; a later version of this package may")
    head: Head = _made(lambda: classes[name](**given))
    return head


def backbone_of(description: ModelDescription) -> nn.Module | None:
    """The network of this package that a description names, untrained; None if it names another module.

    Raises:
        RecordError: for options that the network refuses.
    """
    name, options = description.backbone.get("name"), description.backbone.get("options")
    if name is None:
        return None
    if name not in BACKBONES or not isinstance(options, Mapping) or not options.keys() <= set(BACKBONES[name].options):
        raise RecordError(f"the backbone must be one of {', '.join(BACKBONES)} with options that it has; got {name!r}, {options!r}")
    backbone: nn.Module = _made(lambda: build_backbone(name, **options))
    return backbone


def _head_classes() -> dict[str, type[Head]]:
    """The classes of the heads that are declared, by name: what a file from elsewhere may ask for."""
    return {place.split(":")[1]: imported(place) for place in dict.fromkeys(head.built_by for head in HEADS.values())}


def _options(kind: type[Head]) -> dict[str, Any]:
    """The arguments of a class of heads with their defaults, without its source of what is random."""
    parameters = inspect.signature(kind).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name != "generator"}


def _kept(head: Head, option: str, default: object) -> Plain:
    """What a head was given for an option; for a yes or no, whether it has what the option is named after."""
    value = getattr(head, KEPT_AS.get(option, option))
    if isinstance(default, bool) and not isinstance(value, bool):
        return value is not None
    if not isinstance(value, Plain):
        raise ValueError(f"a shared head must keep its arguments as plain values; got {option}={value!r}.")
    return value


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise RecordError(f"it names a model that cannot be built: {error}") from error
