"""Heads by name, as a protocol wants them."""

import torch

from guided_collapse.geometry.directions import Direction
from guided_collapse.heads.fixed import FixedETFHead
from guided_collapse.heads.head import Head
from guided_collapse.heads.linear import LinearHead
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.training.settings.configuration import Configuration


def build_head(configuration: Configuration, feature_dim: int, num_classes: int, generator: torch.Generator) -> Head:
    """The head that the configuration names; in the fair protocol every head centres its features, in the paper's not the learned.

    Args:
        configuration: head, protocol, temperature and proximal weight.
        feature_dim: d.
        num_classes: C.
        generator: source of initial weights and random directions.
    """
    name, temperature = configuration.head, configuration.temperature
    if name in ("standard", "standard-unnormalised"):
        return LinearHead(
            feature_dim,
            num_classes,
            normalise=name == "standard",
            temperature=temperature,
            centre=configuration.protocol == "fair",
            generator=generator,
        )
    if name in ("fixed", "fixed-random"):
        direction: Direction = "canonical" if name == "fixed" else "random"
        return FixedETFHead(feature_dim, num_classes, temperature=temperature, direction=direction, generator=generator)
    return NearestETFHead(
        feature_dim,
        num_classes,
        temperature=temperature,
        proximal_weight=configuration.proximal_weight,
        implicit_gradient=name == "implicit",
        lagged=name == "implicit-lagged",
        generator=generator,
    )


def takes_stratified_batches(configuration: Configuration) -> bool:
    """Whether every batch has every class in proportion: always in the fair protocol, in the paper's for implicit heads alone."""
    return configuration.protocol == "fair" or configuration.head.startswith("implicit")


def protocol_differences(configuration: Configuration) -> list[str]:
    """In what this run differs from other heads' runs of the same protocol, in words; nothing in the fair protocol."""
    if configuration.protocol == "fair":
        return []
    stratified = takes_stratified_batches(configuration)
    centred = not configuration.head.startswith("standard")
    return [
        "batches are stratified for implicit heads and shuffled for the others; here: "
        + ("stratified" if stratified else "shuffled"),
        "features are centred for fixed and implicit heads and not for learned ones; here: "
        + ("centred" if centred else "not centred"),
    ]
