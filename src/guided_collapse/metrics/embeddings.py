"""Embeddings of a model's inputs, ready for an index, and class means of embeddings, in one pass over a loader."""

from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.heads.batch import gather_over_processes
from guided_collapse.heads.checks import largest_finite
from guided_collapse.metrics.measure import Capture, Loader, feature_batches
from guided_collapse.metrics.statistics import has_float64
from guided_collapse.metrics.streaming import check_samples

LONGEST_LIST = 10


class Embeddings(NamedTuple):
    """The result of `embeddings_of`, and the input of `retrieval` and `compatibility`."""

    embeddings: Tensor
    """(num_samples, feature_dim), of unit norm."""
    labels: Tensor
    """(num_samples,), class indices."""


def embeddings_of(
    model: nn.Module, loader: Loader, *, layer: str | None = None, classifier: str | nn.Linear | None = None
) -> Embeddings:
    """Returns a model's embeddings of a loader's data, ready for an index, and the labels, both on the CPU.

    The embeddings are the inputs of the model's last linear layer divided by their norm, or what `embed` returns if the model has a
    head of this package. A model that returns unit vectors, or has no linear layer, is treated as an embedding model: its outputs
    are the embeddings. If an embedding model ends in a linear layer and does not normalize, name that `layer`.

    The model runs in eval mode, and its training modes are restored afterward. With several processes, each process embeds its
    share of the data, and every process gets the embeddings of all processes.

    Args:
        model, loader, layer, classifier: as for `collapse_of`.

    Example:
        >>> import torch
        >>> from guided_collapse import embeddings_of
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> embeddings, labels = embeddings_of(model, [(torch.randn(6, 4), torch.arange(6) % 3)])
        >>> embeddings.shape, labels.tolist()
        (torch.Size([6, 8]), [0, 1, 2, 0, 1, 2])
    """
    capture = Capture(model, layer, classifier, embedding=True)
    with capture.listening():
        parts = []
        for embeddings, labels in feature_batches(capture, loader):
            largest_finite(embeddings, "embeddings")
            parts.append((embeddings, labels))
    return Embeddings(*(gather_over_processes(torch.cat(tensors)).cpu() for tensors in zip(*parts, strict=True)))


def class_means_of(
    model: nn.Module,
    loader: Loader,
    *,
    num_classes: int | None = None,
    layer: str | None = None,
    classifier: str | nn.Linear | None = None,
) -> Tensor:
    """Returns the class means of a model's embeddings, (num_classes, feature_dim), in float64 where the device supports it.

    With several processes, every process gets the means over the data of all processes. Arguments are as for
    `AnchoredHead.from_model`.
    """
    classes, sums = torch.empty(0, dtype=torch.int64), torch.empty(0)
    capture = Capture(model, layer, classifier, embedding=True)
    with capture.listening():
        for embeddings, labels in feature_batches(capture, loader):
            check_samples(embeddings, labels, num_classes or max(2, int(labels.max()) + 1))
            # A row per sample: its embedding, followed by a 1, whose sum counts the samples.
            device = embeddings.device if has_float64(embeddings.device) else torch.device("cpu")
            rows = functional.pad(embeddings.to(device, torch.float64), (0, 1), value=1.0)
            labels = labels.to(device, torch.int64)
            if len(classes) > 0:
                labels, rows = torch.cat([classes, labels]), torch.cat([sums, rows])
            classes, sums = _sums_by_class(labels, rows)
    classes, sums = _sums_by_class(gather_over_processes(classes), gather_over_processes(sums))
    num_classes = num_classes or int(classes[-1]) + 1
    if len(classes) < num_classes:
        present = set(classes.tolist())
        missing = list(islice((c for c in range(num_classes) if c not in present), LONGEST_LIST))
        raise ValueError(
            f"every class needs samples in the loader, or it has no mean; got none for {num_classes - len(classes)} of "
            f"{num_classes} classes: {', '.join(map(str, missing))}{'' if len(missing) < LONGEST_LIST else ', ...'}. "
            "Add samples, or number the classes without gaps."
        )
    return sums[:, :-1] / sums[:, -1:]


def _sums_by_class(classes: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct classes in order, and the sum of the rows of each."""
    present, places = torch.unique(classes, return_inverse=True)
    return present, rows.new_zeros(len(present), rows.shape[1]).index_add_(0, places, rows)
