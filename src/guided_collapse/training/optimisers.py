"""Optimisers by name, and how their learning rate falls."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from guided_collapse.optim.agd import AGD
from guided_collapse.training.settings.configuration import Configuration


def build_optimiser(
    configuration: Configuration, parameters: Iterable[nn.Parameter], generator: torch.Generator
) -> torch.optim.Optimizer:
    """The optimiser that the resolved configuration names; agd also sets the initial weights that its theory wants.

    Raises:
        ValueError: for parameters that agd cannot train.
    """
    parameters = list(parameters)
    if configuration.optimiser == "agd":
        optimiser = AGD(parameters, gain=configuration.gain)
        optimiser.init_weights(generator)
        return optimiser
    rate, decay = configuration.learning_rate, configuration.weight_decay
    if rate is None or decay is None:
        raise ValueError("learning_rate and weight_decay must be known by now; got None. Pass a resolved configuration.")
    if configuration.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=configuration.momentum, weight_decay=decay)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)


def learning_rate_factor(configuration: Configuration, progress: float) -> float:
    """What the initial learning rate is multiplied with.

    Args:
        configuration: its schedule.
        progress: share of all steps that are done, from 0 to 1.
    """
    if configuration.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if configuration.schedule == "step":
        return 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
    return 1.0


def set_learning_rate(optimiser: torch.optim.Optimizer, configuration: Configuration, progress: float) -> None:
    """Sets the learning rate of every group; agd has none."""
    if configuration.learning_rate is None:
        return
    for group in optimiser.param_groups:
        group["lr"] = configuration.learning_rate * learning_rate_factor(configuration, progress)
