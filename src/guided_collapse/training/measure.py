"""Measurement on clean data in eval mode."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import functional

from guided_collapse.data.batches import ProcessShare
from guided_collapse.heads.classifier import Classifier
from guided_collapse.metrics.machinery.streaming import CollapseMetrics
from guided_collapse.metrics.result import CollapseResult
from guided_collapse.training.tasks import Task

# Features up to this size are kept during a measurement; beyond it the images are gone through a second time.
KEPT_BYTES = 2**30

TRAIN_METRICS = (
    *("nc1", "nc2", "nc2_means", "nc3", "nc4", "bias_collapse", "equinorm", "weight_equinorm", "mean_equinorm"),
    *("weight_equiangularity", "mean_equiangularity", "mean_cosine_margin", "etf_distance", "cdnv", "vci", "trace_ratio"),
    *("numerical_rank", "nearest_centre_accuracy"),
)
TEST_METRICS = ("nc4", "mean_cosine_margin", "nearest_centre_accuracy")


@dataclass(frozen=True)
class Measurement:
    """What the records of a measured epoch say, and all cosine margins, sorted."""

    train: dict[str, float | None]
    test: dict[str, float | None] | None
    margins: dict[str, npt.NDArray[np.float32]]


class _Tally:
    """Loss and accuracy over batches and processes."""

    def __init__(self, device: torch.device) -> None:
        self.totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, samples

    def add(self, logits: Tensor, labels: Tensor) -> None:
        loss = functional.cross_entropy(logits.double(), labels, reduction="sum")
        correct = (logits.argmax(dim=1) == labels).sum()
        self.totals += torch.stack([loss, correct.double(), torch.tensor(float(len(labels)), device=logits.device).double()])

    def averages(self, fabric: Fabric) -> dict[str, float | None]:
        totals = fabric.all_reduce(self.totals, reduce_op="sum")
        loss, correct, samples = torch.as_tensor(totals).tolist()
        return {"loss": loss / samples, "top1": correct / samples}


@torch.no_grad()
def measure(model: Classifier, task: Task, share: ProcessShare, fabric: Fabric) -> Measurement:
    """Loss, accuracy and collapse of the model on the training samples, and on the test samples if there are any.

    The features are those that the head's weight is multiplied with. The model is put in eval mode, and back.
    """
    was_training = model.training
    model.eval()
    tallies = {False: _Tally(share.device), True: _Tally(share.device)}

    def points(test: bool, tally: _Tally | None) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in task.clean_batches(share, test=test):
            with fabric.autocast():
                features = model.backbone(inputs)
            if tally is not None:
                tally.add(model.head(features), labels)
            yield model.head.on_sphere(features.float()), labels

    head = model.head
    keeps = task.num_train * head.feature_dim * 4 <= KEPT_BYTES * share.processes
    metrics = CollapseMetrics(head.num_classes, head.feature_dim, keep_features=keeps).to(share.device)
    for features, labels in points(False, tallies[False]):
        metrics.update(features, labels)
    second = metrics.second_pass(head.weight, head.bias)
    for features, labels in metrics.kept if keeps else points(False, None):
        second.update(features, labels)
    for features, labels in points(True, tallies[True]):
        second.update(features, labels, test=True)
    result = second.compute()
    model.train(was_training)
    train = tallies[False].averages(fabric) | _chosen(result, TRAIN_METRICS)
    margins = {} if result.cosine_margins is None else {"train": _array(result.cosine_margins)}
    if task.num_test == 0:
        return Measurement(train, None, margins)
    test = tallies[True].averages(fabric) | _chosen(result, TEST_METRICS, prefix="test_")
    return Measurement(train, test, margins)


def _chosen(result: CollapseResult, names: tuple[str, ...], *, prefix: str = "") -> dict[str, Any]:
    plain = result.to_dict()
    return {name: plain[f"{prefix}{name}"] for name in names}


def _array(margins: Tensor) -> npt.NDArray[np.float32]:
    return margins.float().cpu().numpy()
