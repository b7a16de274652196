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
    not be orthogonal any more.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # This is how `load_state_dict(..., assign=True)` puts a checkpoint's own tensors in place.
        if isinstance(value, Tensor) and value.dtype in HALF and name in self.__dict__.get("_buffers", ()):
            value = value.float()
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def kept(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            if tensor.is_floating_point() and converted.dtype in HALF:
                return tensor.to(converted.device)
            return converted

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call]
