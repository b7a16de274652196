"""State that keeps its precision."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class SinglePrecisionState(nn.Module):
    """A module whose own buffers stay in float32 when a model is turned to half precision.

    Running statistics take in a small share of each batch, which half precision would round away, and the rows of a frame would
    not be orthogonal any more.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def kept(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            if tensor.is_floating_point() and converted.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(converted.device)
            return converted

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call]
