"""Where in a model of somebody else its last linear layer is."""

from torch import nn

USUAL_NAMES = ("fc", "classifier", "heads.head", "head")
"""What torchvision and Hugging Face call the last layer, or the part of the model that ends in it."""


def last_layer(model: nn.Module) -> str:
    """The name of a model's last linear layer.

    It is what timm's `get_classifier()` gives; or the last linear layer in what is called `fc`, `classifier`, `heads.head` or
    `head`; or the end of an `nn.Sequential`; or the only linear layer that there is.

    Raises:
        ValueError: if there is none, or several that could be it.
    """
    modules = dict(model.named_modules())
    places = _places_of_timm(model) or [name for name in USUAL_NAMES if name in modules]
    found = [names[-1] for names in (linear_names(modules[place], place) for place in places) if names]
    if not places:
        found = _end_of_sequence(model) or linear_names(model)
    if len(found) != 1:
        raise ValueError(
            f"there must be one layer that is clearly the model's last linear one; got {type(model).__name__} with "
            f"{', '.join(found) or 'none'}. {candidates(model)}"
        )
    return found[0]


def linear_layer(model: nn.Module, name: str) -> nn.Linear:
    """The linear layer of that name.

    Raises:
        ValueError: if there is no such layer inside the model.
    """
    found = dict(model.named_modules()).get(name)
    if not name or not isinstance(found, nn.Linear):
        kind = "no module of that name" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"layer must be the name of an nn.Linear inside the model; got {name!r}, {kind}. {candidates(model)}")
    return found


def linear_names(model: nn.Module, prefix: str = "") -> list[str]:
    """The names of all linear layers, in the order of modules; the model's own name is the prefix."""
    return [name for name, module in model.named_modules(prefix=prefix) if isinstance(module, nn.Linear) and name]


def candidates(model: nn.Module) -> str:
    """What to do where a layer was not found."""
    names = linear_names(model)
    return f"Pass layer=, one of: {', '.join(names)}." if names else "This model has no nn.Linear that could be replaced."


def _places_of_timm(model: nn.Module) -> list[str]:
    """Where the classifiers are, more than one in models for distillation; none for a model that is not timm's."""
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is None:
        return []
    given = get_classifier()
    wanted = given if isinstance(given, tuple) else (given,)
    return [name for name, module in model.named_modules() if any(module is classifier for classifier in wanted)]


def _end_of_sequence(model: nn.Module) -> list[str]:
    """The name of the linear layer at the end of a sequence of layers, alone; nothing for another model or another end."""
    names: list[str] = []
    while isinstance(model, nn.Sequential) and len(model) > 0:
        name, model = list(model.named_children())[-1]
        names.append(name)
    return [".".join(names)] if names and isinstance(model, nn.Linear) else []
