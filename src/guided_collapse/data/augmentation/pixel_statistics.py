"""Mean and standard deviation of pixels, for data whose normalisation nobody has written down."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.data.split import Split


class PixelStatistics(NamedTuple):
    """Mean and standard deviation for each channel, where white is 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def pixel_statistics(split: Split, *, most: int = 10_000) -> PixelStatistics:
    """Statistics of the pixels of up to `most` images, taken at even distances.

    A channel that is constant gets the standard deviation 1, so that normalising gives zeros.
    """
    chosen = range(0, len(split), -(-len(split) // most))
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    for index in chosen:
        pixels = split.images[index].to(torch.float64).flatten(1) / 255
        total, squares = total + pixels.mean(dim=1), squares + pixels.square().mean(dim=1)
    mean = torch.as_tensor(total) / len(chosen)
    std = (torch.as_tensor(squares) / len(chosen) - mean.square()).clamp(min=0).sqrt()
    std = torch.where(std < 1e-6, torch.ones_like(std), std)
    return PixelStatistics(tuple(mean.tolist()), tuple(std.tolist()))
