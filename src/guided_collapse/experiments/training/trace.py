"""What the animation shows: a few classes in the space of their own classifier rows, measurement by measurement."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.records.schema import TRACE_POINTS, Trace
from guided_collapse.experiments.training.tasks import Task
from guided_collapse.geometry.simplex import helmert_basis
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.head import Head

NUM_CLASSES = 4
MOST_IN_THEIR_OWN_SPACE = 12
SAMPLES_PER_CLASS = 40


@dataclass(frozen=True)
class TraceState:
    """What a checkpoint keeps of a trace that is not finished.

    Attributes:
        epochs: of the measurements so far.
        frames: by name, the points of each measurement.
        sample_labels: as `Trace` has them.
    """

    epochs: list[int]
    frames: dict[str, list[Tensor]]
    sample_labels: Tensor


class TraceRecorder:
    """Coordinates in which the classes' rows of a simplex ETF are the corners of a regular simplex at distance 1 from the origin.

    With y_k = (x - f_G) . w_k / |f| for the chosen classes k, the coordinates are those of y in the plane or space of vectors that
    sum to 0. Features of three dimensions or fewer are shown as they are, (x - f_G) / |f|, and with more classes.
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.points: dict[str, list[Tensor]] = {name: [] for name in TRACE_POINTS}
        self.sample_labels = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def add(self, epoch: int, model: Classifier, task: Task, share: ProcessShare) -> None:
        """Takes in the model as it is, in eval mode, on the first samples of each chosen class."""
        head = model.head
        as_they_are = head.feature_dim <= 3
        num_shown = min(MOST_IN_THEIR_OWN_SPACE if as_they_are else NUM_CLASSES, task.num_classes)
        features, labels = self._features(model, task, share._replace(rank=0, processes=1), num_shown)
        unit = torch.nn.functional.normalize(head.weight[:num_shown], dim=1)
        norms = head.scale or float(torch.linalg.vector_norm(features, dim=1).mean())
        if as_they_are:
            center = features.new_zeros(head.feature_dim) if head.running_mean is None else head.running_mean.value
            rows, samples = unit, (features - center) / norms
        else:
            simplex = _simplex(head, num_shown)
            rows = unit @ unit.T @ simplex
            samples = (features @ head.weight[:num_shown].T + head.bias[:num_shown]) / norms @ simplex
        means = torch.stack([samples[labels == shown].mean(dim=0) for shown in range(num_shown)])
        for name, points in zip(TRACE_POINTS, (rows, means, samples), strict=True):
            self.points[name].append(torch.nn.functional.pad(points, (0, 3 - points.shape[1])).float().cpu())
        self.epochs.append(epoch)
        self.sample_labels = labels.cpu()

    def _features(self, model: Classifier, task: Task, share: ProcessShare, num_shown: int) -> tuple[Tensor, Tensor]:
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

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The contents of `trace.npz`."""
        weights, means, samples = (torch.stack(self.points[name]).numpy() for name in TRACE_POINTS)
        classes = np.arange(weights.shape[1])
        return vars(Trace(np.array(self.epochs), classes, weights, means, samples, self.sample_labels.numpy()))

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return vars(TraceState(self.epochs, self.points, self.sample_labels))

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up where a checkpoint was."""
        kept = TraceState(**state)
        self.epochs, self.points, self.sample_labels = kept.epochs, kept.frames, kept.sample_labels


def _simplex(head: Head, num_shown: int) -> Tensor:
    """(num_shown, num_shown - 1), what takes inner products with a few rows to coordinates."""
    scale = (head.num_classes - 1) / head.num_classes / math.sqrt(1 - 1 / num_shown)
    return scale * helmert_basis(num_shown, dtype=head.weight.dtype).to(head.weight.device)
