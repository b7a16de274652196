"""The facts of a run, which `config.json`, every checkpoint and the finished model keep: what was asked for, what it ran on."""

import json
from dataclasses import replace
from typing import Any

from guided_collapse.experiments.records.fields import told_of
from guided_collapse.experiments.records.files import checksum
from guided_collapse.experiments.records.schema import CHECKSUM, Hardware, Inputs, RunFacts
from guided_collapse.experiments.configuration import Configuration

Facts = dict[str, Any]
"""As JSON has them, with every field, so that the least change is seen; `RunFacts` says what is in them."""


def checked_facts(content: Any) -> Facts:
    """The facts that the content is, if training and export can rely on them.

    Raises:
        ValueError: if something is missing, or of another type.
    """
    facts = RunFacts.from_json(content)
    if CHECKSUM in content and content != with_checksum(content):
        raise ValueError("it is not as it was written")
    configuration = Configuration.from_dict(dict(facts.configuration))
    of_configuration = (configuration.experiment, configuration.head, configuration.seed)
    if (facts.experiment, facts.head, facts.seed) != of_configuration:
        raise ValueError(
            "experiment, head and seed must be those of the configuration, "
            f"{of_configuration}; got {(facts.experiment, facts.head, facts.seed)}"
        )
    hardware_of(content)
    if configuration.is_unconstrained != (facts.inputs is None):
        raise ValueError(f"inputs must be null for unconstrained features, and only for those; got {facts.inputs!r}")
    if facts.inputs is not None:
        _check_inputs(inputs_of(content), facts.num_classes)
    return content


def with_checksum(facts: Facts) -> Facts:
    """The same with the checksum of everything else, which facts of earlier versions do not have."""
    rest = {name: value for name, value in facts.items() if name != CHECKSUM}
    return rest | {CHECKSUM: checksum(json.dumps(rest, sort_keys=True).encode())}


def with_configuration(facts: Facts, configuration: Configuration) -> Facts:
    """The same for another configuration."""
    return facts | replace(RunFacts.from_json(facts), configuration=configuration.to_dict()).to_json()


def configuration_of(facts: Facts) -> Configuration:
    """The configuration among the facts."""
    return Configuration.from_dict(dict(RunFacts.from_json(facts).configuration))


def hardware_of(facts: Facts) -> Hardware:
    """What the run began on."""
    with told_of("hardware"):
        return Hardware.from_json(RunFacts.from_json(facts).hardware)


def inputs_of(facts: Facts) -> Inputs:
    """What the model of a run must know of its images."""
    with told_of("inputs"):
        return Inputs.from_json(RunFacts.from_json(facts).inputs)


def _check_inputs(inputs: Inputs, num_classes: int) -> None:
    if not len(inputs.mean) == len(inputs.std) == inputs.shape[0]:
        raise ValueError(
            f"inputs must have a mean and a std for each of {inputs.shape[0]} channels; got {inputs.mean} and {inputs.std}"
        )
    if len(inputs.class_names) != num_classes:
        raise ValueError(f"inputs must have the names of {num_classes} classes; got {inputs.class_names}")
