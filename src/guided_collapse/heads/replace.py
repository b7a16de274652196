"""Functions that find the last linear layer of a third-party model and replace it with a head."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from guided_collapse.heads.head import Head
from guided_collapse.heads.nearest import NearestETFHead

AnyHead = TypeVar("AnyHead", bound=Head)

USUAL_NAMES = ("fc", "classifier", "heads.head", "head")
"""Names of the last layer in torchvision and Hugging Face models, or of the part of the model that ends in it."""


def replace_classifier(
    model: nn.Module,
    head: Callable[..., AnyHead] | AnyHead = NearestETFHead,  # type: ignore[assignment]  # the default of a type variable
    *,
    num_classes: int | None = None,
    layer: str | None = None,
    **options: Any,
) -> AnyHead:
    """Replaces the last linear layer of a model with a head, in place, and returns the head.

    Works for models from torchvision, timm and Hugging Face, and any other whose last layer is an `nn.Linear`. Call it before
    creating the optimizer and before wrapping the model for distributed training. The rest of the model, including the keys of its
    state dict, stays as it is.

    To train, pass labels as in `with head.labels(labels): logits = model(inputs)`, or call `head.update(labels)` after the forward
    pass of a lagged head. In eval mode, call `model(inputs)`.

    Without `layer`, the replaced layer is the result of timm's `get_classifier()` if the model has this method; otherwise the last
    linear layer in `fc`, `classifier`, `heads.head` or `head`; otherwise the last layer of an `nn.Sequential`; otherwise the only
    linear layer.

    Args:
        model: any module.
        head: a head class, a function that builds a head from (feature_dim, num_classes), or a head, such as an `AnchoredHead`.
        num_classes: C; if None, the number of classes of the given head or, for a head class or function, of the layer.
        layer: the name of the layer, as in `model.named_modules()`.
        options: for the head class, such as `scale` and `lagged`.

    Returns:
        The head, with the device, dtype and training mode of the layer.

    Raises:
        ValueError: if the layer cannot be found or does not match the head.
        TypeError: for options that the head does not take.

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
    if isinstance(head, Head):
        _check_fit(head, replaced, num_classes, options)
        built: AnyHead = head  # type: ignore[assignment]  # a type variable is not narrowed
        num_classes = built.num_classes
    else:
        num_classes = replaced.out_features if num_classes is None else num_classes
        built = head(replaced.in_features, num_classes, **options)
    built.to(replaced.weight).train(replaced.training)
    model.set_submodule(name, built)
    # Methods of timm and Hugging Face models read the number of classes from these attributes.
    for owner, attribute in ((model, "num_classes"), (model, "num_labels"), (getattr(model, "config", None), "num_labels")):
        if isinstance(getattr(owner, attribute, None), int) and getattr(owner, attribute) != num_classes:
            setattr(owner, attribute, num_classes)
    return built


def last_layer(model: nn.Module) -> str:
    """Returns the name of a model's last linear layer, as `replace_classifier` finds it; raises an error unless one is found."""
    modules = dict(model.named_modules())
    places = _classifiers_of_timm(model) or [name for name in USUAL_NAMES if name in modules]
    found = [names[-1] for names in (linear_names(modules[place], place) for place in places) if names]
    if not places:
        found = _end_of_sequence(model) or linear_names(model)
    if len(found) != 1:
        raise ValueError(
            f"the model must have exactly one candidate for its last linear layer; {type(model).__name__} has "
            f"{', '.join(found) or 'none'}. {_candidates(model)}"
        )
    return found[0]


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """Returns the linear layer of this name. Raises a ValueError if there is none."""
    found = dict(model.named_modules()).get(name)
    if not name or not isinstance(found, nn.Linear):
        kind = "no module of that name" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"layer must be the name of an nn.Linear inside the model; got {name!r}, {kind}. {_candidates(model)}")
    return found


def linear_names(model: nn.Module, prefix: str = "") -> list[str]:
    """Returns the names of all linear layers, in module order, each preceded by the prefix."""
    return [name for name, module in model.named_modules(prefix=prefix) if isinstance(module, nn.Linear) and name]


def _check_fit(head: Head, replaced: nn.Linear, num_classes: int | None, options: dict[str, Any]) -> None:
    if options:
        raise TypeError(f"options require a head class, because a head is already built; got {', '.join(options)}.")
    if head.feature_dim != replaced.in_features:
        raise ValueError(
            f"the head must have the layer's feature_dim={replaced.in_features}; got feature_dim={head.feature_dim}. "
            f"Remove the layer and use Classifier(backbone, head, neck={replaced.in_features}), which learns a projection."
        )
    if num_classes not in (None, head.num_classes):
        raise ValueError(f"num_classes must be that of the head, {head.num_classes}, or None; got {num_classes}.")


def _candidates(model: nn.Module) -> str:
    names = linear_names(model)
    return f"Pass layer=, one of: {', '.join(names)}." if names else "The model has no nn.Linear that could be replaced."


def _classifiers_of_timm(model: nn.Module) -> list[str]:
    """Returns the names of the classifiers of a timm model: usually one, two for distillation models, none for other models."""
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is None:
        return []
    given = get_classifier()
    wanted = given if isinstance(given, tuple) else (given,)
    return [name for name, module in model.named_modules() if any(module is classifier for classifier in wanted)]


def _end_of_sequence(model: nn.Module) -> list[str]:
    """Returns a list with the name of the linear layer at the end of a (nested) `nn.Sequential`, or an empty list."""
    names: list[str] = []
    while isinstance(model, nn.Sequential) and len(model) > 0:
        name, model = list(model.named_children())[-1]
        names.append(name)
    return [".".join(names)] if names and isinstance(model, nn.Linear) else []
