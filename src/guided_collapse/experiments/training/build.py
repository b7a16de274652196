"""The model and the optimizer that a configuration names, and the loss that the model cannot go below."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.training import randomness
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.training.tasks import Task
from guided_collapse.geometry.bounds import tight_frame_cross_entropy_bound
from guided_collapse.geometry.tight import can_be_centered
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.frame_head import FrameHead
from guided_collapse.heads.head import Head
from guided_collapse.lazy import imported
from guided_collapse.metrics.formulas.frames import cross_entropy_lower_bound
from guided_collapse.optim.agd import AGD


def build_model(configuration: Configuration, task: Task, device: torch.device) -> Classifier:
    """The untrained model, still on the CPU; heads of one seed share the backbone's initial weights.

    On a CPU, convolutions and pooling are quicker with the channels last. On MPS that layout is reported to give wrong gradients
    (pytorch/pytorch#175189), and on CUDA its gain has not been measured.
    """
    seed = configuration.seed
    backbone = task.backbone(randomness.generator(seed, randomness.BACKBONE))
    head = build_head(configuration, backbone.feature_dim, task.num_classes, randomness.generator(seed, randomness.HEAD))
    layout = torch.channels_last if device.type == "cpu" else torch.contiguous_format
    return Classifier(backbone, head).to(memory_format=layout)  # type: ignore[call-overload]


def build_head(configuration: Configuration, feature_dim: int, num_classes: int, generator: torch.Generator) -> Head:
    """The head that the configuration names.

    In the fair protocol every head centers its features but the one that is a linear layer as everybody has it; in the paper's no
    learned one does.

    Args:
        configuration: head, protocol, scale and proximal weight.
        feature_dim: d.
        num_classes: C.
        generator: source of initial weights and random directions.
    """
    declared = HEADS[configuration.head]
    fields = {name: name for name in declared.takes} | dict(declared.follows)
    options = {name: getattr(configuration, field) for name, field in fields.items()} | dict(declared.options)
    if declared.centering != "always":
        options["center"] = declared.centers(configuration.protocol)
    head: Head = imported(declared.built_by)(feature_dim, num_classes, **options, generator=generator)
    return head


def loss_lower_bound(head: Head) -> float | None:
    """What the mean cross-entropy is at least, for classes of equal size; None for features whose norm is free.

    With more classes than feature_dim + 1 the bound of tight frames is for heads that are one. What learned rows can reach is not
    known; for them it is the bound of a simplex ETF, which holds for all unit rows and is not reached.
    """
    if head.scale is None:
        return None
    if isinstance(head, FrameHead) and can_be_centered(head.feature_dim, head.num_classes):
        return tight_frame_cross_entropy_bound(head.feature_dim, head.num_classes, head.scale)
    return cross_entropy_lower_bound(head.num_classes, head.scale)


def build_optimizer(configuration: Configuration, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that the resolved configuration names; agd also sets the initial weights that its theory wants.

    Raises:
        ValueError: for parameters that agd cannot train.
    """
    parameters = list(parameters)
    if configuration.optimizer == "agd":
        optimizer = AGD(parameters, gain=configuration.gain)
        optimizer.init_weights(randomness.generator(configuration.seed, randomness.OPTIMIZER))
        return optimizer
    rate = configuration.learning_rate
    decay = configuration.weight_decay
    if rate is None or decay is None:
        raise ValueError("learning_rate and weight_decay must be known by now; got None. Pass a resolved configuration.")
    if configuration.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=configuration.momentum, weight_decay=decay)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)


def set_learning_rate(optimizer: torch.optim.Optimizer, configuration: Configuration, progress: float) -> None:
    """Sets the learning rate of every group; agd has none.

    Args:
        optimizer: of the run.
        configuration: the initial learning rate and its schedule.
        progress: share of all steps that are done, from 0 to 1.
    """
    if configuration.learning_rate is None:
        return
    for group in optimizer.param_groups:
        group["lr"] = configuration.learning_rate * learning_rate_factor(configuration, progress)


def learning_rate_factor(configuration: Configuration, progress: float) -> float:
    """What the initial learning rate is multiplied with at that share of all steps."""
    if configuration.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if configuration.schedule == "step":
        return 0.1 ** ((progress >= 0.5) + (progress >= 0.75))
    return 1.0
