"""The measurement of a model on a loader."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from guided_collapse.metrics.formulas.statistics import GlobalMean, check_global_mean
from guided_collapse.metrics.machinery.capture import Capture, evaluating, only_head
from guided_collapse.metrics.machinery.last_layer import last_linear
from guided_collapse.metrics.machinery.streaming import CollapseMetrics, LabeledFeatures, collapse_in_passes
from guided_collapse.metrics.result import CollapseResult

Loader = Iterable[Any]
LABEL_NAMES = ("labels", "label")
NO_BATCH = "the loader must give at least one batch; got none."
Item = TypeVar("Item")


class Batch(NamedTuple):
    """What a model is given, and the labels."""

    inputs: Any
    """One thing, or several by name."""
    by_name: bool
    labels: Any

    def given_to(self, model: nn.Module) -> Any:
        """What the model makes of the inputs."""
        return model(**self.inputs) if self.by_name else model(self.inputs)


def collapse_of(
    model: nn.Module,
    loader: Loader,
    *,
    layer: str | None = None,
    classifier: str | nn.Linear | None = None,
    num_classes: int | None = None,
    test_loader: Loader | None = None,
    keep_features: bool = False,
    device: torch.device | str | None = None,
    progress: bool = True,
    global_mean: GlobalMean = "samples",
    center_weight: bool = False,
) -> CollapseResult:
    """How collapsed a model is on the data of a loader.

    The model is put in eval mode, and back. For a `Classifier` of this package what is measured are the points on the sphere that
    its head's weight is multiplied with. For any other model the features are what goes into its last linear layer: the one that
    is named as `classifier`, else the one whose output the model returns, which is found with the first batch.

    Give clean data, without augmentation: the loader is gone through twice, the second time for NC4, accuracies and margins, and
    must give the same samples. Under several processes each takes its own share of the data.

    Args:
        model: maps inputs to anything.
        loader: gives batches (inputs, labels), labels (num_samples,), class indices; or dictionaries with the labels under "labels"
            or "label", the rest of which the model is given by name.
        layer: the name of the module whose output are the features, (num_samples, feature_dim), and which the model calls once;
            None takes the classifier's input.
        classifier: the last linear layer, or its name; None finds it, unless there is a `layer`.
        num_classes: C; needed without a classifier.
        test_loader: batches of other samples, judged by the class means of `loader`.
        keep_features: whether all features are kept in memory, so that one pass over the loader is enough.
        device: where inputs go; None takes the device of the model's parameters.
        progress: whether a count of batches is shown on a terminal.
        global_mean: as in `measure_collapse`.
        center_weight: as in `measure_collapse`.

    Returns:
        All metrics in one object; print it for a table.

    Raises:
        ValueError: if the last linear layer must be named, or for data that do not fit.

    Example:
        >>> import torch
        >>> from guided_collapse import collapse_of
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> batches = [(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
        >>> collapse_of(model, batches).num_samples  # or with classifier="2"
        6
    """
    check_global_mean(global_mean)
    if device is None:
        device = next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))
    if layer is None and classifier is None and only_head(model) is None:
        batches = iter(loader)
        first_batch = next(_not_empty(batches, NO_BATCH))
        with evaluating(model):
            classifier = last_linear(model, lambda: _batch(first_batch, device).given_to(model))
        if batches is loader:
            loader = chain([first_batch], batches)
    capture = Capture(model, layer, classifier)
    weight, bias = capture.weight, capture.bias
    if num_classes is None:
        if weight is None:
            raise ValueError("num_classes must be given when there is no classifier to count the rows of; got None.")
        num_classes = len(weight)
    with capture.listening():
        first = _not_empty(_batches(capture, loader, device, "class means", progress), NO_BATCH)
        again = _not_empty(
            _batches(capture, loader, device, "samples", progress),
            "the loader must be one that can be gone through twice; it gave nothing the second time. "
            "Pass a DataLoader or a list, or keep_features=True.",
        )
        test = _batches(capture, () if test_loader is None else test_loader, device, "test samples", progress)
        start = next(first)
        metrics = CollapseMetrics(
            num_classes,
            start.features.shape[1],
            keep_features=keep_features,
            global_mean=global_mean,
            center_weight=center_weight,
        ).to(start.features.device)
        return collapse_in_passes(metrics, chain([start], first), again, test, weight=weight, bias=bias)


def _batches(capture: Capture, loader: Loader, device: torch.device | str, what: str, progress: bool) -> Iterator[LabeledFeatures]:
    """Features and labels of every batch."""
    for item in _counted(loader, what) if progress else loader:
        batch = _batch(item, device)
        features = capture.during(partial(batch.given_to, capture.model)).features
        yield LabeledFeatures(features, torch.as_tensor(batch.labels).to(features.device))


def _batch(item: Any, device: torch.device | str) -> Batch:
    """What a loader gives, on the device."""
    if isinstance(item, Mapping):
        label_name = _label_name(item)
        inputs = {name: _moved(value, device) for name, value in item.items() if name != label_name}
        return Batch(inputs, True, item[label_name])
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return Batch(_moved(item[0], device), False, item[1])
    raise ValueError(
        f"the loader must give batches (inputs, labels); got {type(item).__name__}. "
        "Wrap it so that it does, or so that it gives dictionaries with the labels under 'labels'."
    )


def _moved(value: Any, device: torch.device | str) -> Any:
    """A tensor on the device; anything else as it is."""
    return value.to(device) if isinstance(value, Tensor) else value


def _label_name(batch: Mapping[str, Any]) -> str:
    """Under which of the usual names a dictionary has its labels."""
    found = [name for name in LABEL_NAMES if name in batch]
    if len(found) != 1:
        raise ValueError(
            f"a batch that is a dictionary must have its labels under one of {', '.join(LABEL_NAMES)}; got {', '.join(batch)}. "
            "Rename them, or give batches (inputs, labels)."
        )
    return found[0]


def _not_empty(items: Iterable[Item], requirement: str) -> Iterator[Item]:
    """The items; an error if there are none."""
    empty = True
    for item in items:
        empty = False
        yield item
    if empty:
        raise ValueError(requirement)


def _counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items, while a line on standard error says how many went by; silent where that is no terminal.

    Args:
        items: counted against their length, if they have one.
        what: the beginning of the line.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    total = f"/{len(items)}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, start=1):
        sys.stderr.write(f"\r{what}: batch {number}{total}")
        sys.stderr.flush()
        yield item
    sys.stderr.write("\n")
