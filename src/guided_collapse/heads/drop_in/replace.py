"""A head in place of the last linear layer of a model that somebody else has written."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from guided_collapse.heads.drop_in.last_layer import last_layer, linear_layer
from guided_collapse.heads.head import Head
from guided_collapse.heads.nearest import NearestETFHead

AnyHead = TypeVar("AnyHead", bound=Head)


def replace_classifier(
    model: nn.Module,
    head: Callable[..., AnyHead] = NearestETFHead,  # type: ignore[assignment]  # the default of a type variable
    *,
    num_classes: int | None = None,
    layer: str | None = None,
    **options: Any,
) -> AnyHead:
    """Puts a head in the place of a model's last linear layer, and returns the head.

    The model keeps its class, its methods and the names of its state, but for those of the layer. In training mode labels reach the
    head by `with head.labels(labels): logits = model(inputs)`, or after the forward pass of a lagged head by `head.update(labels)`.
    Replace the layer before the optimizer is made and before the model is wrapped for several processes.

    The layer is the one that is named; or what timm's `get_classifier()` gives; or `fc`, `classifier`, `heads.head` or `head`, or
    the last linear layer in one of these, as torchvision and Hugging Face have it; or the end of an `nn.Sequential`; or the only
    linear layer that there is.

    Args:
        model: any module.
        head: the class of the head, or what makes one from (feature_dim, num_classes).
        num_classes: C; None takes the layer's.
        layer: the name of the layer, as `model.named_modules()` has it.
        options: of the head's class, such as `scale` and `lagged`.

    Returns:
        The head, on the layer's device and in its mode; `head.feature_dim` is the layer's width.

    Raises:
        ValueError: if the layer cannot be found, or does not fit the head.
        TypeError: for options that the head does not have.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFHead, replace_classifier
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> head = replace_classifier(model, NearestETFHead, scale=10.0)
        >>> inputs, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> with head.labels(labels):
        ...     logits = model(inputs)
        >>> logits.shape, model[2] is head
        (torch.Size([6, 3]), True)
    """
    name = last_layer(model) if layer is None else layer
    replaced = linear_layer(model, name)
    num_classes = replaced.out_features if num_classes is None else num_classes
    built = head(replaced.in_features, num_classes, **options).to(replaced.weight).train(replaced.training)
    model.set_submodule(name, built)
    _tell_number_of_classes(model, num_classes)
    return built


def _tell_number_of_classes(model: nn.Module, num_classes: int) -> None:
    """Sets the number of classes where models of timm and Hugging Face keep it, whose own methods ask for it."""
    for owner, name in ((model, "num_classes"), (model, "num_labels"), (getattr(model, "config", None), "num_labels")):
        if isinstance(getattr(owner, name, None), int) and getattr(owner, name) != num_classes:
            setattr(owner, name, num_classes)
