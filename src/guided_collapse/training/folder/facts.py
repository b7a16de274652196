"""The facts of a run, which `config.json`, every checkpoint and the finished model keep: what was asked for, what it ran on."""

import json
from typing import Any

from guided_collapse.records.files import checksum
from guided_collapse.records.names import FORMAT
from guided_collapse.training.settings.configuration import Configuration

CHECKSUM = "sha256"
Facts = dict[str, Any]


def checked_facts(content: Any) -> Facts:
    """The facts that the content is, if training and export can rely on them.

    Raises:
        ValueError: if something is missing, or of another type.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it must be an object; got {content!r}")
    if content.get("format") != FORMAT:
        raise ValueError(f"it has format {content.get('format')!r}, and this version reads {FORMAT}")
    if CHECKSUM in content and content != with_checksum(content):
        raise ValueError("it is not as it was written")
    configuration, hardware = content.get("configuration"), content.get("hardware")
    if not isinstance(configuration, dict):
        raise ValueError(f"configuration must be an object; got {configuration!r}")
    of_run = Configuration.from_dict(configuration)
    for name in ("experiment", "head", "seed"):
        if content.get(name) != getattr(of_run, name):
            raise ValueError(f"{name} must be {getattr(of_run, name)!r}, as in the configuration; got {content.get(name)!r}")
    if not isinstance(hardware, dict) or not {"cpu", "devices", "processes"} <= set(hardware):
        raise ValueError(f"hardware must say cpu, devices and processes; got {hardware!r}")
    if not _is_count(hardware.get("threads")):
        raise ValueError(f"threads must be a positive whole number; got {hardware.get('threads')!r}")
    for name in ("num_classes", "feature_dim"):
        if not _is_count(content.get(name)):
            raise ValueError(f"{name} must be a positive whole number; got {content.get(name)!r}")
    if not of_run.is_unconstrained:
        _check_inputs(content.get("inputs"), content["num_classes"])
    elif content.get("inputs") is not None:
        raise ValueError(f"inputs must be null for unconstrained features; got {content['inputs']!r}")
    return content


def with_checksum(facts: Facts) -> Facts:
    """The same with the checksum of everything else, which facts of earlier versions do not have."""
    rest = {name: value for name, value in facts.items() if name != CHECKSUM}
    return rest | {CHECKSUM: checksum(json.dumps(rest, sort_keys=True).encode())}


def configuration_of(facts: Facts) -> Configuration:
    """The configuration among the facts."""
    return Configuration.from_dict(facts["configuration"])


def _check_inputs(inputs: Any, num_classes: int) -> None:
    if not isinstance(inputs, dict):
        raise ValueError(f"inputs must be an object; got {inputs!r}")
    shape, names = inputs.get("shape"), inputs.get("class_names")
    if not (isinstance(shape, list) and len(shape) == 3 and all(map(_is_count, shape))):
        raise ValueError(f"the shape of inputs must be three positive whole numbers; got {shape!r}")
    for name in ("mean", "std"):
        values = inputs.get(name)
        if not (isinstance(values, list) and len(values) == shape[0] and all(type(value) in (int, float) for value in values)):
            raise ValueError(f"the {name} of inputs must be a number for each of {shape[0]} channels; got {values!r}")
    if not (isinstance(names, list) and len(names) == num_classes and all(isinstance(name, str) for name in names)):
        raise ValueError(f"inputs must have the names of {num_classes} classes; got {names!r}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0
