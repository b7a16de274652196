"""Which linear layer of a model is its classifier."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from guided_collapse.heads.replace import linear_names


def linear_layers_in_words(model: nn.Module) -> str:
    """The linear layers of a model, for a message."""
    names = linear_names(model)
    return f"the linear layers {', '.join(names)}" if names else "no linear layer"


def last_linear(model: nn.Module, run: Callable[[], Any]) -> nn.Linear:
    """The linear layer whose output the model returns, as it is: alone, or as a part of what it returns.

    It is looked for while the model runs, and not by its name or place, so what is found is the layer that classifies.

    Args:
        model: any module, in eval mode.
        run: gives the model a batch, and returns what it returns.

    Raises:
        ValueError: if the model returns the output of no linear layer, or that of several.
    """
    given: dict[nn.Linear, Tensor] = {}

    def keep(module: nn.Linear, inputs: Any, output: Tensor) -> None:
        # A copy: what comes next in the model may work in place.
        given[module] = output.clone()

    handles = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        returned = _tensors(run())
    finally:
        for handle in handles:
            handle.remove()
    found = [module for module, output in given.items() if any(torch.equal(output, tensor) for tensor in returned)]
    if len(found) != 1:
        count = "several linear layers" if found else "no linear layer"
        raise ValueError(
            f"the classifier must be the one linear layer whose output the model returns; this model returns that of {count}. "
            f"Name the last linear layer, classifier=...; this model has {linear_layers_in_words(model)}."
        )
    return found[0]


def _tensors(output: Any) -> list[Tensor]:
    """The tensors in what a model returns: itself, entries of a tuple or dictionary, or its logits."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        entries = list(output.values())
    else:
        entries = list(output) if isinstance(output, (tuple, list)) else [getattr(output, "logits", None)]
    return [entry for entry in entries if isinstance(entry, Tensor)]
