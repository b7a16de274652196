"""Builds a checked configuration and placement from a preset and the values of flags. Does not import torch."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from guided_collapse.experiments.backbones import BACKBONES, NETWORK_FIELDS
from guided_collapse.experiments.configuration import HEAD_FIELDS, Configuration, Placement
from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import FEATURES, FINE_TUNING, OWN_DATA, OWN_IMAGES, PRESETS, named_after, preset
from guided_collapse.experiments.run import RunFolder
from guided_collapse.experiments.run import configuration_of as configuration_of_run


def starting_point(words: Sequence[str]) -> Configuration:
    """Returns the configuration that flags override: the preset that the first word names, or one for the user's data."""
    flags = {word.partition("=")[0] for word in words}
    if words and not words[0].startswith("-"):
        if words[0] not in PRESETS and Path(words[0]).exists():
            raise RequestError(f"data must come with its flag; got {words[0]}, which is no experiment. Write --data {words[0]}")
        return preset(words[0])
    if "--features" in flags:
        return FEATURES
    if flags & {"--pretrained", "--weights"}:
        return FINE_TUNING
    if flags & {"--data", "--help", "-h", "--help-all"}:
        return OWN_IMAGES
    if named := [word for word in words if word in PRESETS]:
        raise RequestError(f"the experiment must come before all flags; got {named[0]} after {words[0]}. Move it to the front.")
    raise RequestError(
        "an experiment or data is required; got neither. Name an experiment, as in `guided-collapse train digits` "
        "(`guided-collapse list` shows all), or give --data FOLDER with your own images, or --features FILE."
    )


def starting_point_of_upgrade(words: Sequence[str]) -> Configuration:
    """Returns the preset that --preset names, or the configuration of the old run, whose folder is the first argument."""
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--preset":
            return preset(value or "".join(words[place + 1 : place + 2]))
    if not words or words[0].startswith("-"):
        return OWN_IMAGES  # missing arguments are reported during parsing
    with requested():
        return configuration_of_run(RunFolder(Path(words[0])).facts())


def configuration_of(start: Configuration, given: Mapping[str, Any], heads: Sequence[str]) -> Configuration:
    """Returns the configuration `start`, changed by the given values of its fields; ignores all other values.

    Values of `start` that no longer have an effect return to their defaults. A given value without effect raises RequestError. If
    only the heads do not use the value, the function warns instead, because the same flags may be meant for runs of several heads.
    """
    defaults = {field.name: field.default for field in fields(Configuration)}
    values = start.to_dict() | {name: value for name, value in given.items() if name in defaults}
    if start in OWN_DATA and "data" in given and "experiment" not in given:
        values["experiment"] = named_after(given["data"])
    if values["optimizer"] != start.optimizer:  # each optimizer has its own defaults
        values |= {name: None for name in ("learning_rate", "weight_decay", "schedule") if name not in given}
    for name, (choice, idle) in _IDLE.items():
        chosen = heads if choice == "head" else [values[choice].partition(":")[0]]
        if values[name] == defaults[name] or not set(chosen) <= set(idle):
            continue
        if name not in given:
            values[name] = defaults[name]
            continue
        message = (
            f"{choice} {' and '.join(chosen)} has no option {name}; got {name}={values[name]!r}, which would have no effect. "
            f"Leave it out, or choose another {choice}."
        )
        if choice != "head":
            raise RequestError(message)
        warnings.warn(message, stacklevel=2)
    if values["neck"] == "none" and values["backbone"].startswith(("timm:", "none")) and "feature_dim" not in given:
        values["feature_dim"] = None
    if values["neck"] == "none" and (values["freeze"] or values["backbone"] == "none") and "head" not in given:
        values["head"] = heads[0]  # the default head has no parameters, and there is nothing else to train
    configuration = Configuration(**values)
    centering = [head for head in heads if HEADS[head].centers(configuration.protocol)]
    if configuration.batch_size == 1 and centering:
        raise RequestError(
            f"batch_size must be at least 2 for {', '.join(centering)}: a single sample is zero once it is centered; got 1. "
            "Raise --batch-size."
        )
    size = configuration.image_size or (KNOWN[configuration.data].image_size if configuration.data in KNOWN else None)
    if size is not None and configuration.crop_size is not None and configuration.crop_size > size:
        raise RequestError(f"crop_size must be at most the image size, {size}; got {configuration.crop_size}. Lower --crop-size.")
    return configuration


def placement_of(given: Mapping[str, Any], data: str) -> Placement:
    """Returns the placement with these values.

    Raises RequestError if the output folder cannot be created or is inside the data folder.
    """
    placement = Placement(**{field.name: given[field.name] for field in fields(Placement) if field.name in given})
    out = placement.out
    with requested():
        existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise RequestError(
            f"out must be a folder, or a path where one can be created; got {out}, but {existing} is a file. Choose another --out."
        )
    own_images = data.strip() and data not in (*KNOWN, "unconstrained") and Path(data).is_dir()
    if own_images and out.resolve().is_relative_to(Path(data).resolve()):
        raise RequestError(f"--out must not lie inside the data folder; got {out} in {Path(data).resolve()}. Choose another --out.")
    return placement


def _networks_without(option: str) -> tuple[str, ...]:
    return tuple(name for name, network in BACKBONES.items() if option not in network.options)


# For each field, the name of another field, and the values of that other field for which the first one has no effect.
# `Configuration` itself rejects learning rates for agd, and sizes of unconstrained features for images.
_IDLE: Mapping[str, tuple[str, Collection[str]]] = {
    "gain": ("optimizer", ("sgd", "adamw")),
    "momentum": ("optimizer", ("agd", "adamw")),
    **{field: ("head", tuple(name for name, head in HEADS.items() if field not in head.takes)) for field in HEAD_FIELDS},
    **{field: ("backbone", (*_networks_without(field), "unconstrained")) for field in NETWORK_FIELDS if field != "feature_dim"},
    "feature_dim": ("backbone", _networks_without("feature_dim")),
    "test_features": ("backbone", tuple(name for name in (*BACKBONES, "unconstrained") if name != "none")),
    "test_fraction": ("data", (*KNOWN, "unconstrained")),
    "long_tail_ratio": ("long_tail", ("none",)),
    **dict.fromkeys(("validation_fraction", "images_per_class", "long_tail"), ("backbone", ("unconstrained",))),
    **dict.fromkeys(
        ("image_size", "flip", "crop_padding", "rotation", "crop_size", "random_resized"), ("backbone", ("unconstrained", "none"))
    ),
}
