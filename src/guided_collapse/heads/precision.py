"""State that keeps its precision."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

HALF = (torch.float16, torch.bfloat16)


def state_dtype() -> torch.dtype:
    """What state is made in: torch's default dtype, or float32 where that is half precision."""
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


class SinglePrecisionState(nn.Module):
    """A module whose own buffers stay in float32 or wider when a model is turned to half precision, or loaded from it.

    Running statistics take in a small share of each batch, which half precision would round away, and the rows of a frame would
    not be orthogonal any more. Counts and marks stay integers and booleans, whatever the rest of a model is turned to.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # This is how `load_state_dict(..., assign=True)` and `from_pretrained` put a checkpoint's own tensors in place.
        before = self.__dict__.get("_buffers", {}).get(name)
        if isinstance(value, Tensor) and isinstance(before, Tensor):
            kept = value.to(_kept_dtype(before, value.dtype))
            # The loader marks what it has loaded, and sets what has no mark anew.
            kept.__dict__.update(value.__dict__)
            value = kept
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def kept(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            kept_dtype = _kept_dtype(tensor, converted.dtype)
            return converted if converted.dtype == kept_dtype else tensor.to(converted.device, kept_dtype)

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call]


def _kept_dtype(state: Tensor, asked: torch.dtype) -> torch.dtype:
    """What state is turned to if another type is asked for."""
    if not state.is_floating_point():
        return state.dtype
    return torch.promote_types(state.dtype, torch.float32) if asked in HALF else asked
