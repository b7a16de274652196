"""Where in a model the features and the classifier are, and how to get at them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from guided_collapse.heads.head import Head


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

    def __init__(self, model: nn.Module, layer: str | None, classifier: str | nn.Linear | None) -> None:
        self.model = model
        self.features: Tensor | None = None
        self.classifier: Head | nn.Linear | None = None
        if classifier is not None:
            self.classifier = _linear(model, classifier)
        elif layer is None:
            self.classifier = _only_head(model)
        source = self.classifier if layer is None else _module(model, layer)
        if source is None:
            raise ValueError(
                "where the features are must be said for a model without one head of this package; got neither layer nor "
                f"classifier. Name the last linear layer, classifier=...; this model has {_linear_names(model)}."
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

    def __call__(self, inputs: Any) -> Tensor:
        """The features of a batch of inputs, (num_samples, feature_dim): those that the weight is multiplied with."""
        self.features = None
        self.model(inputs)
        if self.features is None:
            raise ValueError("the named module must take part in model(inputs); it was never called. Name another one.")
        if self.features.ndim != 2:
            raise ValueError(
                f"features must be (num_samples, feature_dim); the named module gave {tuple(self.features.shape)}. "
                "Name a module after pooling, such as the last linear layer: classifier=..."
            )
        if not isinstance(self.classifier, Head):
            return self.features
        # A head of this package multiplies its weight with the features on their sphere.
        return self.classifier.on_sphere(self.features.to(torch.promote_types(self.features.dtype, torch.float32)))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Eval mode and a hook on the module that has the features; both are undone at the end, also after an error."""
        modes = {module: module.training for module in self.model.modules()}
        handle = self.source.register_forward_hook(self._keep_input if self.source is self.classifier else self._keep_output)
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            handle.remove()
            self.features = None
            for module, training in modes.items():
                module.training = training

    def _keep_output(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.features = output

    def _keep_input(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self.features = inputs[0]


def _only_head(model: nn.Module) -> Head | None:
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
            f"classifier must be an nn.Linear of the model, or its name; got {classifier!r}. This model has {_linear_names(model)}."
        )
    return found


def _linear_names(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name]
    return f"the linear layers {', '.join(names)}" if names else "no linear layer"
