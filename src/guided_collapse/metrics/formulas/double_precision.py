"""Where float64 is: what is measured on a device without it is measured on the CPU."""

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Whether the device computes in float64; Apple's does not."""
    return device.type != "mps"


def where_float64_is(tensor: Tensor) -> Tensor:
    """The tensor, on the CPU if its device has no float64."""
    return tensor if has_float64(tensor.device) else tensor.cpu()
