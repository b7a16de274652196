"""What the animation shows: a few classes in the space of their own classifier rows, measurement by measurement."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.tasks import Task, head_of
from guided_collapse.geometry.simplex import helmert_basis
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.head import Head

NUM_CLASSES = 4
MOST_IN_THEIR_OWN_SPACE = 12
SAMPLES_PER_CLASS = 40


class TraceRecorder:
    """Coordinates in which the classes' rows of a simplex ETF are the corners of a regular simplex at distance 1 from the origin.

    With y_k = (x - f_G) . w_k / |f| for the chosen classes k, the coordinates are those of y in the plane or space of vectors that
    sum to 0. Features of at most three dimensions are shown as they are, (x - f_G) / |f|, and with more classes.
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.points: dict[str, list[Tensor]] = {"weights": [], "means": [], "samples": []}
        self.sample_labels = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def add(self, epoch: int, model: Classifier, task: Task, share: ProcessShare) -> None:
        """Adds the model as it is, in eval mode, on the first samples of each chosen class."""
        head = head_of(model)
        as_they_are = head.in_features <= 3
        num_shown = min(MOST_IN_THEIR_OWN_SPACE if as_they_are else NUM_CLASSES, task.num_classes)
        features, labels = _features(model, task, share._replace(rank=0, processes=1), num_shown)
        weight = head.weight[:num_shown]
        unit = torch.nn.functional.normalize(weight, dim=1)
        norms = head.scale if isinstance(head, Head) else float(torch.linalg.vector_norm(features, dim=1).mean())
        if as_they_are:
            mean = head.running_mean if isinstance(head, Head) else None
            rows, samples = unit, (features if mean is None else features - mean.value) / norms
        else:
            factor = (task.num_classes - 1) / task.num_classes / math.sqrt(1 - 1 / num_shown)
            simplex = factor * helmert_basis(num_shown, dtype=weight.dtype).to(weight.device)
            logits = torch.nn.functional.linear(features, weight, None if head.bias is None else head.bias[:num_shown])
            rows, samples = unit @ unit.T @ simplex, logits / norms @ simplex
        means = torch.stack([samples[labels == shown].mean(dim=0) for shown in range(num_shown)])
        for name, points in (("weights", rows), ("means", means), ("samples", samples)):
            self.points[name].append(torch.nn.functional.pad(points, (0, 3 - points.shape[1])).float().cpu())
        self.epochs.append(epoch)
        self.sample_labels = labels.cpu()

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The contents of `trace.npz`."""
        points = {name: torch.stack(moments).numpy() for name, moments in self.points.items()}
        classes = np.arange(points["weights"].shape[1])
        return {"epochs": np.array(self.epochs), "classes": classes, **points, "sample_labels": self.sample_labels.numpy()}


def _features(model: Classifier, task: Task, share: ProcessShare, num_shown: int) -> tuple[Tensor, Tensor]:
    """The features of the first training samples of each of the first classes, and their labels."""
    found: list[Tensor] = []
    found_labels: list[Tensor] = []
    missing = torch.full((num_shown,), SAMPLES_PER_CLASS)
    was_training = model.training
    model.eval()
    for inputs, labels in task.clean_batches(share, test=False):
        for shown in range(num_shown):
            wanted = torch.nonzero(labels == shown)[: int(missing[shown]), 0]
            if len(wanted) > 0:
                found.append(model.points(inputs[wanted]))
                found_labels.append(labels[wanted])
                missing[shown] -= len(wanted)
        if not missing.any():
            break
    model.train(was_training)
    return torch.cat(found), torch.cat(found_labels)
