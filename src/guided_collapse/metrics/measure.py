"""Measurements of features and labels, and of a model on a loader; reading features from a file."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from guided_collapse.geometry.simplex import check_num_classes
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.head import Head, unit_norm
from guided_collapse.heads.replace import last_layer, linear_layer, linear_names
from guided_collapse.lazy import optional
from guided_collapse.metrics.formulas import frame_deviation
from guided_collapse.metrics.result import CollapseResult, collapse_result
from guided_collapse.metrics.samples import Measured, check_classifier, count_samples
from guided_collapse.metrics.statistics import GlobalMean, check_global_mean, class_statistics, has_float64
from guided_collapse.metrics.streaming import CollapseMetrics, check_samples, collapse_in_passes

Loader = Iterable[Any]
LABEL_NAMES = ("labels", "label")
ARRAYS = ("features", "labels", "weight", "bias", "test_features", "test_labels")


@torch.no_grad()
def measure_collapse(
    features: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    num_classes: int | None = None,
    test_features: Tensor | None = None,
    test_labels: Tensor | None = None,
    global_mean: GlobalMean = "samples",
    center_weight: bool = False,
) -> CollapseResult:
    """Measures the neural collapse of features and, with a weight, of the classifier: NC1 to NC4, margins and more.

    Pass the features that the weight multiplies, of data without augmentation, from a model in eval mode. Metrics are accurate to
    about 1e-6 for float32 features, except for VCI, which is accurate to 1e-4, and to about 1e-9 for float64. Features on MPS
    devices, which lack float64, are measured on the CPU.

    Args:
        features: (num_samples, feature_dim).
        labels: class indices, (num_samples,). Classes without samples are left out of metrics of class means.
        weight: W, (num_classes, feature_dim), as in `nn.Linear`; if None, metrics of the classifier are left out.
        bias: b, (num_classes,); None for a classifier without bias.
        num_classes: C; if None, the number of rows of the weight or, without one, the largest label + 1.
        test_features: (num_test_samples, feature_dim), judged by the class means of `features`.
        test_labels: (num_test_samples,).
        global_mean: "samples" for the mean of all samples, as in the paper, or "classes" for the mean of class means.
        center_weight: whether to subtract the mean row of the weight before NC2, NC3, equinorms, equiangularities and angles are
            computed, which the paper does not do. Cosine margins always use the centered weight.

    Returns:
        A `CollapseResult`, such as `result.nc1`; `print(result)` shows a table.

    Raises:
        TypeError: for arguments of the wrong type.
        ValueError: for shapes that do not match, values that are not finite, or samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse import measure_collapse, simplex_etf
        >>> labels = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> result = measure_collapse(simplex_etf(3)[labels], labels, simplex_etf(3))
        >>> round(result.nc1, 6), round(result.nc3, 6), result.accuracy
        (0.0, 0.0, 1.0)
    """
    check_global_mean(global_mean)
    if num_classes is None and isinstance(weight, Tensor):
        num_classes = len(weight)
    num_classes = check_samples(features, labels, num_classes)
    if (test_features is None) != (test_labels is None):
        given = "test_labels" if test_features is None else "test_features"
        raise ValueError(f"test_features and test_labels must be passed together; got only {given}. Pass both or neither.")
    if test_features is not None and test_labels is not None:
        check_samples(test_features, test_labels, num_classes, feature_dim=features.shape[1], prefix="test_")
        if len(test_features) == 0:
            raise ValueError("test_features must have at least one row; got none. Leave out both test arrays if there are none.")
    measured = Measured(class_statistics(features, labels, num_classes), weight, bias, global_mean, center_weight)
    tested = None if test_features is None or test_labels is None else count_samples(measured, test_features, test_labels)
    return collapse_result(measured, count_samples(measured, features, labels), tested)


def nc1(features: Tensor, labels: Tensor) -> float:
    r"""Returns the within-class variability $\operatorname{tr}(\Sigma_W \Sigma_B^\dagger) / C$: 0 at collapse.

    Arguments are those of `measure_collapse`.

    Example:
        >>> import torch
        >>> from guided_collapse.metrics import nc1
        >>> nc1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1]))
        0.0
    """
    return measure_collapse(features, labels).nc1


@torch.no_grad()
def nc2(weight: Tensor) -> float:
    r"""Returns the distance of a weight, (num_classes, feature_dim), from a simplex ETF: 0 at collapse.

    $$
    \left\lVert \frac{W W^\top}{\lVert W W^\top \rVert_F} - \frac{P}{\sqrt{C-1}} \right\rVert_F, \qquad
    P = I - \tfrac{1}{C} \mathbf{1}\mathbf{1}^\top
    $$

    For C > d + 1, it is the distance from a tight frame: $\Pi / \sqrt d$ replaces $P / \sqrt{C-1}$, where $\Pi$ is the nearest
    projector of rank d onto vectors whose entries sum to zero.

    Example:
        >>> import torch
        >>> from guided_collapse import simplex_etf
        >>> from guided_collapse.metrics import nc2
        >>> round(nc2(simplex_etf(4)), 6), round(nc2(torch.eye(4)), 6)
        (0.0, 0.517638)
    """
    check_classifier(weight, None, weight.shape[-1], len(weight))
    check_num_classes(len(weight))
    return frame_deviation((weight if has_float64(weight.device) else weight.cpu()).to(torch.float64))


def nc3(features: Tensor, labels: Tensor, weight: Tensor) -> float:
    r"""Returns how far weight and class means are from self-duality: 0 at collapse.

    $$
    \left\lVert \frac{W H^\top}{\lVert W H^\top \rVert_F} - \frac{P}{\sqrt{C-1}} \right\rVert_F
    $$

    The rows of $H$ are the centered class means. For C > d + 1, $\Pi / \sqrt d$ replaces $P / \sqrt{C-1}$, as in `nc2`. Arguments
    are those of `measure_collapse`.

    Example:
        >>> import torch
        >>> from guided_collapse import simplex_etf
        >>> from guided_collapse.metrics import nc3
        >>> labels = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> round(nc3(simplex_etf(3)[labels], labels, simplex_etf(3)), 6)
        0.0
    """
    return _with_weight(measure_collapse(features, labels, weight).nc3)


def nc4(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> float:
    """Returns the fraction of samples whose predicted class is not the class of the nearest mean: 0 at collapse.

    Arguments are those of `measure_collapse`.

    Example:
        >>> import torch
        >>> from guided_collapse.metrics import nc4
        >>> features, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 1])
        >>> nc4(features, labels, torch.eye(2)), nc4(features, labels, torch.eye(2), torch.tensor([0.0, 2.0]))
        (0.0, 0.25)
    """
    return _with_weight(measure_collapse(features, labels, weight, bias).nc4)


def _with_weight(value: float | None) -> float:
    if value is None:
        raise TypeError("weight must be a tensor (num_classes, feature_dim); got None.")
    return value


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
    global_mean: GlobalMean = "samples",
    center_weight: bool = False,
) -> CollapseResult:
    """Measures the neural collapse of a model on the data of a loader.

    Features are the inputs of the last linear layer, found as in `replace_classifier`; for a model with a head of this library,
    they are the points on the sphere that the head's weight multiplies. The model runs in eval mode, and its training modes are
    restored afterward.

    Without `keep_features`, the loader is iterated twice, the second time for NC4, accuracies and margins. It must yield the same
    samples both times, without random augmentation. In distributed training, every process passes its own share of the data.

    Args:
        model: any module whose last layer is an `nn.Linear` or a head.
        loader: yields batches (inputs, labels) with class indices, (num_samples,), or dictionaries with "labels" or "label", whose
            other entries are passed to the model by name.
        layer: the name of the module whose outputs are the features, (num_samples, feature_dim); if None, features are the inputs
            of the classifier.
        classifier: the last linear layer, or its name; if None, it is found automatically, unless a `layer` is given.
        num_classes: C; required without a classifier.
        test_loader: batches of test samples, judged by the class means of `loader`.
        keep_features: whether to keep all features in memory, so that a single pass over the loader is enough.
        device: where to move inputs; if None, the device of the model's parameters.
        global_mean, center_weight: as for `measure_collapse`.

    Returns:
        A `CollapseResult`; `print(result)` shows a table.

    Raises:
        TypeError, ValueError: if features or labels are invalid, or if the last linear layer cannot be found.

    Example:
        >>> import torch
        >>> from guided_collapse import collapse_of
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> batches = [(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))]
        >>> collapse_of(model, batches).num_samples  # or with classifier="2"
        6
    """
    capture = Capture(model, layer, classifier)
    if num_classes is None:
        if capture.weight is None:
            raise ValueError("num_classes is required with layer= and without classifier=; got None.")
        num_classes = len(capture.weight)
    with capture.listening():
        first = feature_batches(capture, loader, device)
        start = next(first)
        metrics = CollapseMetrics(
            start[0].shape[1], num_classes, keep_features=keep_features, global_mean=global_mean, center_weight=center_weight
        ).to(start[0].device)
        again = feature_batches(capture, loader, device, again=True)
        test = feature_batches(capture, test_loader, device) if test_loader else ()
        return collapse_in_passes(metrics, chain([start], first), again, test, weight=capture.weight, bias=capture.bias)


def feature_batches(
    capture: "Capture", loader: Loader, device: torch.device | str | None = None, *, again: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (features, labels) of every batch. Raises a ValueError if there is no batch; `again` marks the second iteration."""
    if device is None:
        tensors = chain(capture.model.parameters(), capture.model.buffers())
        device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    is_empty = True
    for batch in loader:
        is_empty = False
        if isinstance(batch, Mapping):
            named = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
            names = [name for name in LABEL_NAMES if name in named]
            if len(names) != 1:
                raise ValueError(
                    f"a batch that is a dictionary must have its labels under one of {', '.join(LABEL_NAMES)}; "
                    f"got {', '.join(batch)}. Rename them, or yield batches (inputs, labels)."
                )
            labels = named.pop(names[0])
            features, _ = capture(**named)
        elif isinstance(batch, (tuple, list)) and len(batch) == 2:
            inputs, labels = batch
            features, _ = capture(inputs.to(device) if isinstance(inputs, Tensor) else inputs)
        else:
            found = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
            raise TypeError(
                f"the loader must yield batches (inputs, labels); got {found}. "
                "Wrap it to yield these, or dictionaries with the labels under 'labels'."
            )
        yield features, torch.as_tensor(labels).to(features.device)
    if is_empty and again:
        raise ValueError(
            "the loader must allow two iterations; it yielded nothing the second time. "
            "Pass a DataLoader or a list, or keep_features=True."
        )
    if is_empty:
        raise ValueError(
            "the loader must yield at least one batch; got none. Pass a nonempty DataLoader or list, not an exhausted iterator."
        )


class Capture:
    """Captures features of a model during its forward pass. Arguments are those of `collapse_of`.

    For a model with a head of this library, features are projected onto the head's sphere. With `embedding`, features are unit
    vectors instead: the result of `head.embed` or, for other models, the features divided by their norm.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: str | None = None,
        classifier: str | nn.Linear | None = None,
        *,
        embedding: bool = False,
    ) -> None:
        self.model = model
        self.features: Tensor | None = None
        self.embedding, self.is_free = embedding, layer is None and classifier is None
        self.unclear: ValueError | None = None  # why the classifier was not found
        self.classifier: Head | nn.Linear | None = None
        if layer is None or classifier is not None:
            try:
                self.classifier = _classifier(model, classifier)
            except ValueError as error:
                if not (embedding and self.is_free):
                    raise
                layer, self.unclear = "", error if linear_names(model) else None  # "" names the model itself
        self.weight = None if self.classifier is None else self.classifier.weight
        self.bias = None if self.classifier is None else self.classifier.bias
        modules = dict(model.named_modules())
        if layer is not None and layer not in modules:
            raise ValueError(f"layer must name a module of the model; got {layer!r}. Known: {', '.join(filter(None, modules))}.")
        self.layer = None if layer is None else modules[layer]
        self.finish: Callable[[Tensor], Tensor] = unit_norm if embedding else lambda features: features
        if isinstance(self.classifier, Head):
            self.is_free = False
            self.finish = self.classifier.embed if embedding else self.classifier.on_sphere

    def __call__(self, *inputs: Any, **named: Any) -> tuple[Tensor, Any]:
        """Runs the model and returns the features, (num_samples, feature_dim), and the model's output."""
        self.features = None
        output = self.model(*inputs, **named)
        features, self.features = self.features, None
        if self.is_free and _has_unit_rows(output):
            # The model is an embedding model, whose last linear layer is not a classifier.
            if not self.embedding:
                raise ValueError(
                    "a model must return logits; this one returns unit vectors, like an embedding model without a classifier. "
                    "Pass layer= and num_classes=, or the embeddings to measure_collapse."
                )
            features = output
        elif self.unclear is not None:
            raise self.unclear
        if features is None:
            raise ValueError("the named module must be called by model(inputs), but was not. Name another module.")
        if features.ndim != 2:
            raise ValueError(
                f"features must be (num_samples, feature_dim); got {tuple(features.shape)}. "
                "Name a module after pooling, such as the last linear layer: classifier=..."
            )
        return self.finish(features), output

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Returns a context that captures features in eval mode without gradients, and restores all training modes afterward."""
        module = self.classifier if self.layer is None else self.layer
        assert module is not None
        handle = module.register_forward_hook(self._keep, with_kwargs=True)
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            handle.remove()
            self.features = None
            for module, training in modes.items():
                module.training = training

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        features = output
        if self.layer is None:
            # The first argument of the classifier, passed by position or by name.
            features = next(iter(inspect.signature(module.forward).bind(*inputs, **named).arguments.values()), None)
        if not isinstance(features, Tensor):
            raise TypeError(
                f"features must be a tensor; the named module has a {type(features).__name__} instead. "
                "Name a module that returns a tensor, or the last linear layer: classifier=..."
            )
        if self.features is not None:
            raise ValueError(
                "the named module must be called only once by model(inputs), but was called again. "
                "Name a module that is used in one place only."
            )
        # A copy, because later modules may work in place, as nn.ReLU(inplace=True) does.
        self.features = features.clone()


def _has_unit_rows(output: Any) -> bool:
    """Returns whether the output is a batch of unit vectors; some, but not all, of the vectors may be zero.

    Rows of probabilities are not unit vectors, even if each has a single 1.
    """
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[1] == 1 or not output.is_floating_point():
        return False
    output, tolerance = output.float(), max(1e-3, 4 * torch.finfo(output.dtype).eps)
    norms = torch.linalg.vector_norm(output, dim=1)
    is_unit = (norms - 1).abs() <= tolerance
    are_probabilities = (output >= 0).all() and ((output.sum(dim=1) - 1).abs() <= tolerance).all()
    return bool((is_unit | (norms == 0)).all() and is_unit.any() and not are_probabilities)


def _classifier(model: nn.Module, named: str | nn.Linear | None) -> Head | nn.Linear:
    """Returns the named linear layer or, if `named` is None, the model's only head.

    If there is no head or more than one, returns the last linear layer.

    A head is a `Head` or a linear layer that is the head of a `Classifier`.
    """
    modules = dict(model.named_modules())
    names = linear_names(model)
    known = f"Pass classifier=, one of: {', '.join(names)}." if names else "It has no linear layer; pass layer= and num_classes=."
    if named is not None:
        found = modules.get(named) if isinstance(named, str) else named
        if not isinstance(found, nn.Linear) or not any(module is found for module in modules.values()):
            raise ValueError(f"classifier must be an nn.Linear of the model, or its name; got {named!r}. {known}")
        return found
    own = {module for module in modules.values() if isinstance(module, Head)}
    plain = {module.head for module in modules.values() if isinstance(module, Classifier) and isinstance(module.head, nn.Linear)}
    if len(own | plain) == 1:
        return (own | plain).pop()
    try:
        return linear_layer(model, last_layer(model))
    except ValueError as error:
        raise ValueError(f"classifier must be given for a model whose last linear layer is unclear. {known}") from error


def read_arrays(path: Path) -> dict[str, Any]:
    """Returns arguments of `measure_collapse` by name, read from an `.npz` or `.safetensors` file without unpickling anything.

    Arrays with other names are ignored.
    """
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"features must be in an .npz or .safetensors file; got {path.name}. Use numpy.savez or safetensors.")
    load = np.load if path.suffix == ".npz" else optional("safetensors.torch", extra="experiments").load_file
    try:
        found = load(path)
        arrays = {name: found[name] for name in ARRAYS if name in found}
    except Exception as error:  # a damaged archive can fail in any layer of the readers
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        if "allow_pickle" in str(error):
            reason = "it holds pickled objects, which are never loaded"
        raise ValueError(f"{path} must be a readable {path.suffix} file of numbers; reading it failed: {reason}.") from error
    for name in ("features", "labels"):
        if name not in arrays:
            raise ValueError(f"{path} must hold features and labels; it lacks {name} and holds {', '.join(arrays) or 'neither'}.")
    tensors = {}
    for name, array in arrays.items():
        with suppress(TypeError):  # raised for text, for example
            tensors[name] = torch.as_tensor(array)
        if name not in tensors or tensors[name].is_floating_point() == name.endswith("labels"):
            kind = "integers" if name.endswith("labels") else "floating-point"
            raise ValueError(f"{name} in {path} must be {kind}; got {array.dtype}. Convert them before saving.")
    return tensors
