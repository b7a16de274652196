"""Where in a model the features and the classifier are, and how to get at them."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from guided_collapse.heads.head import Head
from guided_collapse.metrics.machinery.last_layer import linear_layers_in_words


class Captured(NamedTuple):
    """What a model gives for a batch."""

    features: Tensor
    """(num_samples, feature_dim), those that the weight is multiplied with."""
    output: Any
    """What the model returns."""


class Capture:
    """Takes the features out of a model while it runs.

    Args:
        model: any module.
        layer: the name of the module whose output are the features; None takes the input of the classifier.
        classifier: the linear layer whose weight and bias are the classifier, or its name; None for a model with
            a head of this package, such as a `Classifier`, or for features alone.

    Raises:
        ValueError: if there is no such module, or nothing says where the features are.
    """

    def __init__(self, model: nn.Module, layer: str | None = None, classifier: str | nn.Linear | None = None) -> None:
        self.model = model
        self.features: Tensor | None = None
        self.classifier: Head | nn.Linear | None = None
        if classifier is not None:
            self.classifier = _linear(model, classifier)
        elif layer is None:
            self.classifier = only_head(model)
        self.takes_input = layer is None
        source = self.classifier if layer is None else _module(model, layer)
        if source is None:
            raise ValueError(
                "where the features are must be said for a model without one head of this package; got neither layer nor "
                f"classifier. Name the last linear layer, classifier=...; this model has {linear_layers_in_words(model)}."
            )
        self.source: nn.Module = source

    @property
    def weight(self) -> Tensor | None:
        """W, (num_classes, feature_dim); None without a classifier."""
        return None if self.classifier is None else self.classifier.weight.detach()

    @property
    def bias(self) -> Tensor | None:
        """b, (num_classes,); None without a classifier, or for one without a bias."""
        bias = None if self.classifier is None else self.classifier.bias
        return None if bias is None else bias.detach()

    def __call__(self, inputs: Any) -> Captured:
        """The features of a batch of inputs, and what the model makes of them."""
        return self.during(lambda: self.model(inputs))

    def during(self, run: Callable[[], Any]) -> Captured:
        """The same for a call of the model that gives it its inputs in some other way."""
        self.features = None
        output = run()
        features, self.features = self.features, None
        if features is None:
            raise ValueError("the named module must take part in model(inputs); it was never called. Name another one.")
        if features.ndim != 2:
            raise ValueError(
                f"features must be (num_samples, feature_dim); the named module gave {tuple(features.shape)}. "
                "Name a module after pooling, such as the last linear layer: classifier=..."
            )
        if not isinstance(self.classifier, Head):
            return Captured(features, output)
        # A head of this package multiplies its weight with the features on their sphere.
        return Captured(self.classifier.on_sphere(features), output)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Eval mode and a hook on the module that has the features; both are undone at the end, also after an error."""
        if self.takes_input:
            handle = self.source.register_forward_pre_hook(self._keep_input, with_kwargs=True)
        else:
            handle = self.source.register_forward_hook(self._keep_output)
        try:
            with evaluating(self.model):
                yield
        finally:
            handle.remove()
            self.features = None

    def _keep_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._keep(output)

    def _keep_input(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        # The features are the first parameter of the module, by whatever name and in whatever place they are passed.
        bound = inspect.signature(module.forward).bind(*arguments, **named).arguments
        self._keep(next(iter(bound.values()), None))

    def _keep(self, features: Any) -> None:
        if not isinstance(features, Tensor):
            raise ValueError(
                f"features must be one tensor; the named module {'took' if self.takes_input else 'gave'} {_described(features)}. "
                "Name a module that gives a tensor alone, or the last linear layer, classifier=...; "
                f"this model has {linear_layers_in_words(self.model)}."
            )
        if self.features is not None:
            raise ValueError(
                "the named module must be called once in model(inputs), else there is no telling which call has the features; "
                "it was called again. Name a module that is used in one place only."
            )
        # A copy: what comes next in the model may work in place, as nn.ReLU(inplace=True) does.
        self.features = features.clone()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; every module is in its own mode again at the end, also after an error."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _described(value: Any) -> str:
    """What something that is no tensor holds, in short."""
    kind = f"a {type(value).__name__}"
    if isinstance(value, Mapping):
        return f"{kind} with {', '.join(map(str, value))}"
    if isinstance(value, (tuple, list)):
        return f"{kind} of {', '.join(type(entry).__name__ for entry in value)}"
    return kind


def only_head(model: nn.Module) -> Head | None:
    """The head of this package in a model; None if there is none, or more than one."""
    heads = [module for module in model.modules() if isinstance(module, Head)]
    return heads[0] if len(heads) == 1 else None


def _module(model: nn.Module, name: str) -> nn.Module:
    modules = dict(model.named_modules())
    if name not in modules:
        raise ValueError(
            f"layer must be the name of a module of the model; got {name!r}. Known: {', '.join(filter(None, modules))}."
        )
    return modules[name]


def _linear(model: nn.Module, classifier: str | nn.Linear) -> nn.Linear:
    named = dict(model.named_modules())
    found = named.get(classifier) if isinstance(classifier, str) else classifier
    if not isinstance(found, nn.Linear) or not any(module is found for module in named.values()):
        raise ValueError(
            f"classifier must be an nn.Linear of the model, or its name; got {classifier!r}. "
            f"This model has {linear_layers_in_words(model)}."
        )
    return found
