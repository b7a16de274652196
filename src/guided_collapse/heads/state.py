"""Buffers that keep their precision, and safe ways to read and overwrite them within a forward pass."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from guided_collapse.geometry.operations import is_transformed, operation

HALF = (torch.float16, torch.bfloat16)


def state_dtype(dtype: torch.dtype | None = None) -> torch.dtype:
    """Returns the dtype of state: the given one or torch's default, but at least float32."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


class SinglePrecisionState(nn.Module):
    """A module whose buffers stay in float32 or wider when it is cast to half precision or loads a half-precision checkpoint.

    In half precision, small updates of running means would be rounded away, and frames would lose their exact angles. Integer and
    boolean buffers always keep their dtype.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # `load_state_dict(assign=True)` and `from_pretrained` assign a checkpoint's own tensors.
        before = self.__dict__.get("_buffers", {}).get(name)
        if isinstance(value, Tensor) and isinstance(before, Tensor):
            kept = value.to(_kept_dtype(before, value.dtype))
            # Transformers marks loaded tensors with attributes, and reinitializes tensors without them.
            kept.__dict__.update(value.__dict__)
            value = kept
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def kept(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            dtype = _kept_dtype(tensor, converted.dtype)
            return converted if converted.dtype == dtype else tensor.to(converted.device, dtype)

        return super()._apply(kept, recurse)  # type: ignore[no-untyped-call]


def _kept_dtype(state: Tensor, requested: torch.dtype) -> torch.dtype:
    if not state.is_floating_point():
        return state.dtype
    return torch.promote_types(state.dtype, torch.float32) if requested in HALF else requested


def snapshot(state: Tensor, *, only_compiled: bool = False) -> Tensor:
    """Returns a differentiable copy of a buffer or parameter that may be overwritten before the backward pass.

    With `only_compiled`, eager mode returns the state itself. This is safe if the result is not used after the state is
    overwritten.

    In a compiled graph, a plain clone is not enough: torch.compile may read the buffer again in the backward pass instead of saving
    the clone (pytorch/pytorch pull request 197039). It cannot do so if the copy is made by a custom operation.
    """
    if torch.compiler.is_compiling():
        return _snapshot(state)
    return state if only_compiled else state.clone()


@operation("snapshot")
def _snapshot(state: Tensor) -> Tensor:
    return state.clone()


@_snapshot.register_fake
def _(state: Tensor) -> Tensor:
    return torch.empty_like(state)


_snapshot.register_autograd(lambda ctx, grad: grad)


def replace(state: Tensor, value: Tensor, is_valid: Tensor | None = None) -> None:
    """Sets a buffer to a new value, unless the boolean scalar `is_valid` is False.

    Autograd graphs that hold the old value, as returned by `held`, keep the old value. The new value must not be modified in place.
    """
    value = value.detach() if is_valid is None else torch.where(is_valid, value, state)
    if _replaces_memory():
        state.data = value.to(state.dtype).contiguous()
    else:
        state.copy_(value)


def held(state: Tensor) -> Tensor:
    """Returns the value of a buffer that only `replace` changes, for an autograd graph to hold; copied only if necessary."""
    # .data instead of .detach(), because autograd would reject later changes of the buffer, although `replace` writes to other
    # memory.
    return state.data if _replaces_memory() else snapshot(state)


def _replaces_memory() -> bool:
    # torch.compile and torch.func require in-place changes, and inference tensors must not become state.
    return not (torch.compiler.is_compiling() or is_transformed() or torch.is_inference_mode_enabled())
