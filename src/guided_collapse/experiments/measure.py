"""Measurement on clean data in eval mode: the metrics, and the points that the animation of the collapse shows."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.tasks import Task, head_of
from guided_collapse.geometry.simplex import helmert_basis
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.head import Head
from guided_collapse.metrics.declared import NC1, NC1_NORMALIZED, recorded
from guided_collapse.metrics.measure import Capture
from guided_collapse.metrics.streaming import CollapseMetrics, collapse_in_passes

KEPT_BYTES = 2**30  # features up to this size are kept during a measurement; larger ones are computed a second time
TRACED_CLASSES, TRACED_CLASSES_IN_3D = 4, 12  # classes in the animation; more for features of at most three dimensions
SAMPLES_PER_CLASS = 40  # in the animation


@dataclass(frozen=True)
class Measurement:
    """The metrics of a measured epoch by split, as its record holds them, and the cosine margins of all training samples."""

    train: dict[str, float | None]
    test: dict[str, float | None] | None
    margins: dict[str, npt.NDArray[np.float32]]


class _Tally:
    """Loss and accuracy over batches and processes."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self.totals = torch.zeros(3, num_classes, dtype=torch.float64, device=device)  # loss, correct, samples of each class

    def add(self, logits: Tensor, labels: Tensor) -> None:
        losses = functional.cross_entropy(logits.double(), labels, reduction="none")
        correct = logits.argmax(dim=1) == labels
        self.totals.index_add_(1, labels, torch.stack([losses, correct.double(), torch.ones_like(losses)]))

    def averages(self, fabric: Fabric, parts: Mapping[str, Tensor]) -> dict[str, float | None]:
        """Returns loss and accuracy over the samples of all processes, and the accuracy over the classes of each part."""
        totals = torch.as_tensor(fabric.all_reduce(self.totals, reduce_op="sum")).cpu()
        loss, correct, samples = totals.sum(dim=1).tolist()
        found: dict[str, float | None] = {"loss": loss / samples, "top1": correct / samples}
        for name, classes in parts.items():
            _, correct, samples = totals[:, classes].sum(dim=1).tolist()
            found[f"top1_{name}"] = correct / samples if samples else None
        return found


def parts_by_size(train_labels: Tensor, num_classes: int) -> dict[str, Tensor]:
    """Returns the classes in three parts by number of training samples: "many", "medium" and "few", each a third of the classes.

    Returns an empty dict for fewer than three classes, or if their sizes differ less than twofold.
    """
    counts = train_labels.bincount(minlength=num_classes)
    if num_classes < 3 or counts.max() < 2 * counts.min():
        return {}
    ordered = counts.argsort(descending=True, stable=True)
    return dict(zip(("many", "medium", "few"), ordered.tensor_split(3), strict=True))


def measure(model: Classifier, task: Task, share: ProcessShare, fabric: Fabric) -> Measurement:
    """Measures loss, accuracy and collapse of the model in eval mode on the training samples, and on any test samples.

    Features are measured in the form that the head multiplies by its weight: normalized for heads on spheres, raw for nn.Linear.
    NC1 of the normalized features is recorded for every head, so that heads can be compared.
    """
    head = head_of(model)
    capture = Capture(model, classifier=head if isinstance(head, nn.Linear) else None)
    num_classes, feature_dim = head.out_features, head.in_features
    seen, seen_test = (_Tally(num_classes, share.device) for _ in range(2))
    keeps = task.num_train * feature_dim * 4 <= KEPT_BYTES * share.processes
    metrics = CollapseMetrics(num_classes=num_classes, feature_dim=feature_dim, keep_features=keeps).to(share.device)
    normalized = None
    if isinstance(head, nn.Linear):
        normalized = CollapseMetrics(num_classes=num_classes, feature_dim=feature_dim).to(share.device)

    def batches(*, test: bool, tally: _Tally | None) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in task.clean_batches(share, test=test):
            with fabric.autocast():
                features, logits = capture(inputs)
            if tally is not None:
                tally.add(logits, labels)
            if tally is seen and normalized is not None:
                normalized.update(functional.normalize(features.double()), labels)
            yield features, labels

    with capture.listening():
        result = collapse_in_passes(
            metrics,
            batches(test=False, tally=seen),
            batches(test=False, tally=None),
            batches(test=True, tally=seen_test),
            weight=capture.weight,
            bias=capture.bias,
        )
    found: dict[str, Any] = result.to_dict()
    train = seen.averages(fabric, {}) | {name: found[key] for name, key in recorded("train").items()}
    # NC1 does not change with the radius of the sphere.
    train[NC1_NORMALIZED.name] = train[NC1.name] if normalized is None else normalized.measure().nc1
    test = None
    if task.num_test > 0:
        parts = parts_by_size(task.train_labels, num_classes)
        test = seen_test.averages(fabric, parts) | {name: found[key] for name, key in recorded("test").items()}
    margins = {} if result.cosine_margins is None else {"train": result.cosine_margins.float().cpu().numpy()}
    return Measurement(train, test, margins)


class TraceRecorder:
    """Records the points of the animation, in coordinates that put the rows of a simplex ETF at the corners of a regular simplex.

    For a point x, let y_k = (x - f_G) . w_k / |f| for the chosen classes k, with the global mean f_G, the norm |f| of the features,
    and the rows w_k of the classifier. The coordinates are those of y in the plane or space of vectors that sum to 0, scaled so
    that the corners have distance 1 from the origin. Features of at most three dimensions are shown directly, as (x - f_G) / |f|,
    for a larger number of classes.
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.points: dict[str, list[Tensor]] = {"weights": [], "means": [], "samples": []}
        self.sample_labels = torch.zeros(0, dtype=torch.int64)

    @torch.no_grad()
    def add(self, epoch: int, model: Classifier, task: Task) -> None:
        """Records the points of the model in eval mode, for the first samples of each chosen class."""
        head = head_of(model)
        low_dimensional = head.in_features <= 3
        num_shown = min(TRACED_CLASSES_IN_3D if low_dimensional else TRACED_CLASSES, task.num_classes)
        inputs, labels = task.first_samples(num_shown, SAMPLES_PER_CLASS, head.weight.device)
        was_training = model.training
        features = model.eval().points(inputs)
        model.train(was_training)
        weight = head.weight[:num_shown]
        unit = functional.normalize(weight, dim=1)
        norms = head.scale if isinstance(head, Head) else float(torch.linalg.vector_norm(features, dim=1).mean())
        if low_dimensional:
            mean = head.running_mean if isinstance(head, Head) else None
            rows, samples = unit, features / norms if mean is None else features / norms - mean.value
        else:
            factor = (task.num_classes - 1) / task.num_classes / math.sqrt(1 - 1 / num_shown)
            simplex = factor * helmert_basis(num_shown, dtype=weight.dtype).to(weight.device)
            logits = functional.linear(features, weight, None if head.bias is None else head.bias[:num_shown])
            rows, samples = unit @ unit.T @ simplex, logits / norms @ simplex
        means = torch.stack([samples[labels == shown].mean(dim=0) for shown in range(num_shown)])
        for name, points in (("weights", rows), ("means", means), ("samples", samples)):
            self.points[name].append(functional.pad(points, (0, 3 - points.shape[1])).float().cpu())
        self.epochs.append(epoch)
        self.sample_labels = labels.cpu()

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the contents of `trace.npz`."""
        points = {name: torch.stack(moments).numpy() for name, moments in self.points.items()}
        classes = np.arange(points["weights"].shape[1])
        return {"epochs": np.array(self.epochs), "classes": classes, **points, "sample_labels": self.sample_labels.numpy()}
