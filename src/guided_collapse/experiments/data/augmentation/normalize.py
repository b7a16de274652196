"""Normalized pixels, and the statistics for it of data that nobody has measured."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.experiments.data.split import Split

MOST_IMAGES = 10_000  # that are looked at for their statistics


class PixelStatistics(NamedTuple):
    """Mean and standard deviation for each channel, where white is 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def pixel_statistics(split: Split) -> PixelStatistics:
    """Statistics of the pixels of up to MOST_IMAGES images, taken at even distances.

    A channel that is constant gets the standard deviation 1, so that normalizing gives zeros.
    """
    chosen = range(0, len(split), -(-len(split) // MOST_IMAGES))
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    for index in chosen:
        pixels = split.images[index].to(torch.float64).flatten(1) / 255
        total, squares = total + pixels.mean(dim=1), squares + pixels.square().mean(dim=1)
    mean = torch.as_tensor(total) / len(chosen)
    std = (torch.as_tensor(squares) / len(chosen) - mean.square()).clamp(min=0).sqrt()
    std = torch.where(std < 1e-6, torch.ones_like(std), std)
    return PixelStatistics(tuple(mean.tolist()), tuple(std.tolist()))


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std in float32, for each channel, where x runs from 0 to 1.

    Args:
        images: (num_samples, channels, height, width), uint8 from 0 to 255 or floating point from 0 to 1.
        mean: one for each channel.
        std: one for each channel, positive.

    Raises:
        ValueError: for a number of channels other than that of the images.
    """
    if not len(mean) == len(std) == images.shape[1]:
        raise ValueError(f"mean and std need a value for each of the {images.shape[1]} channels; got {len(mean)} and {len(std)}.")
    largest = 1.0 if images.is_floating_point() else 255.0
    center, scale = (torch.tensor(values, dtype=torch.float32, device=images.device)[:, None, None] for values in (mean, std))
    return images.to(torch.float32, copy=True).sub_(center * largest).div_(scale * largest)
