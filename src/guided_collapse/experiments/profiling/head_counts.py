"""What a training step of a head asks of a device, counted on any machine."""

import copy
from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.experiments.profiling.operations import CountOperations, OperationCounts
from guided_collapse.experiments.records.schema import HeadCounts
from guided_collapse.geometry.nearest import checked_solver
from guided_collapse.heads.head import Head
from guided_collapse.heads.nearest import NearestETFHead

# A meta tensor has a shape and no values. Heads treat it as they do every tensor that is not on a CPU, and it takes no time.
DEVICES = (("cpu", torch.device("cpu")), ("accelerator", torch.device("meta")))


def head_counts(name: str, head: Head, batch_size: int) -> tuple[HeadCounts, ...]:
    """The counts of one step of the head and the loss, forward and backward, for each kind of device.

    Args:
        name: of the head.
        head: is left as it is; a copy is counted.
        batch_size: samples in the step.
    """
    return tuple(
        HeadCounts(
            head=name,
            device_kind=kind,
            solver=checked_solver(head.solver, device) if isinstance(head, NearestETFHead) else None,
            **asdict(step_counts(copy.deepcopy(head).to(device), batch_size, device)),
        )
        for kind, device in DEVICES
    )


def step_counts(head: Head, batch_size: int, device: torch.device) -> OperationCounts:
    """The counts of a head's next step but one, as the first of all may do more; the head takes both in."""
    head.train()
    labels = torch.arange(batch_size, device=device) % head.num_classes
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        features = torch.randn(batch_size, head.feature_dim, generator=generator).to(device).requires_grad_()
        with CountOperations() as counting:
            _step(head, features, labels)
    return counting.counts


def _step(head: Head, features: Tensor, labels: Tensor) -> None:
    loss = functional.cross_entropy(head(features, labels), labels)
    torch.autograd.grad(loss, [features, *head.parameters()])
