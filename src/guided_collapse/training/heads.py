"""Heads by name, as a protocol wants them."""

import torch

from guided_collapse.heads.head import Head
from guided_collapse.lazy import imported
from guided_collapse.records.heads import HEADS
from guided_collapse.training.settings.configuration import Configuration


def build_head(configuration: Configuration, feature_dim: int, num_classes: int, generator: torch.Generator) -> Head:
    """The head that the configuration names; in the fair protocol every head centres its features, in the paper's not the learned.

    Args:
        configuration: head, protocol, temperature and proximal weight.
        feature_dim: d.
        num_classes: C.
        generator: source of initial weights and random directions.
    """
    declared = HEADS[configuration.head]
    options = {name: getattr(configuration, name) for name in declared.takes} | dict(declared.options)
    if not declared.centred:
        options["centre"] = configuration.protocol == "fair"
    head: Head = imported(declared.built_by)(feature_dim, num_classes, **options, generator=generator)
    return head


def takes_stratified_batches(configuration: Configuration) -> bool:
    """Whether every batch has every class in proportion: always in the fair protocol, in the paper's for implicit heads alone."""
    return configuration.protocol == "fair" or HEADS[configuration.head].stratified


def protocol_differences(configuration: Configuration) -> list[str]:
    """In what this run differs from other heads' runs of the same protocol, in words; nothing in the fair protocol."""
    if configuration.protocol == "fair":
        return []
    stratified = takes_stratified_batches(configuration)
    centred = HEADS[configuration.head].centred
    return [
        "batches are stratified for implicit heads and shuffled for the others; here: "
        + ("stratified" if stratified else "shuffled"),
        "features are centred for fixed and implicit heads and not for learned ones; here: "
        + ("centred" if centred else "not centred"),
    ]
