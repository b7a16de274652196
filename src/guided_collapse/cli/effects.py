"""Which fields of a configuration are without effect, by what else is chosen."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from guided_collapse.backbones.declared import BACKBONES
from guided_collapse.data.known import KNOWN
from guided_collapse.records.heads import HEADS
from guided_collapse.training.settings.configuration import Configuration


class Idle(NamedTuple):
    """A field is without effect where the field `choice` has one of these values."""

    choice: str
    values: Collection[str]


def _networks_without(option: str) -> tuple[str, ...]:
    return tuple(name for name, network in BACKBONES.items() if option not in network.options)


_FREE = Idle("backbone", ("unconstrained",))

# Not here: what the configuration itself refuses (learning rates for agd, sizes of unconstrained features for images), and
# everything of the placement, which is about the machine and may be given always.
IDLE: Mapping[str, Idle] = {
    "gain": Idle("optimiser", ("sgd", "adamw")),
    "momentum": Idle("optimiser", ("agd", "adamw")),
    **{
        field: Idle("head", tuple(name for name, head in HEADS.items() if field not in head.takes))
        for field in ("temperature", "proximal_weight")
    },
    **{
        field: Idle("backbone", (*_networks_without(field), "unconstrained")) for field in ("width", "stem", "affine", "batch_norm")
    },
    "feature_dim": Idle("backbone", _networks_without("feature_dim")),
    "image_size": _FREE,
    "test_fraction": Idle("data", (*KNOWN, "unconstrained")),
    "images_per_class": _FREE,
    "long_tail": _FREE,
    "long_tail_ratio": Idle("long_tail", ("none",)),
    "flip": _FREE,
    "crop_padding": _FREE,
    "rotation": _FREE,
    "crop_size": _FREE,
    "random_resized": _FREE,
}


def with_effect(configuration: Configuration, given: Collection[str], heads: Sequence[str]) -> Configuration:
    """The configuration with defaults where a preset's own values no longer have an effect.

    Args:
        configuration: as asked for.
        given: names of the fields that were asked for; the others are the preset's.
        heads: those that are to be trained.

    Raises:
        ValueError: for fields that were asked for, and are without effect. What some heads have no use for is a warning alone: the
            same flags may go to runs of several heads.
    """
    defaults: dict[str, Any] = {field.name: field.default for field in fields(configuration)}
    left_over: dict[str, Any] = {}
    for name, idle in IDLE.items():
        value, chosen = getattr(configuration, name), heads if idle.choice == "head" else [getattr(configuration, idle.choice)]
        if value == defaults[name] or not set(chosen) <= set(idle.values):
            continue
        if name not in given:
            left_over[name] = defaults[name]
            continue
        message = (
            f"{idle.choice} {' and '.join(chosen)} has no option {name}; got {name}={value!r}, which would be without effect. "
            f"Leave it out, or choose another {idle.choice}."
        )
        if idle.choice != "head":
            raise ValueError(message)
        warnings.warn(message, stacklevel=2)
    return replace(configuration, **left_over)
