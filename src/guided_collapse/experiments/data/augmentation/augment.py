"""Random changes of whole batches."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.experiments.data.augmentation import Augmentation
from guided_collapse.experiments.data.augmentation.resampling import resized_windows, rotate, windows

SMALLEST_AREA = 0.08  # of a randomly resized crop, as a share of the image
WIDEST = 4 / 3  # width to height of such a crop, at most; the narrowest is its inverse


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """The batch after the random changes, each sample with its own.

    Each sample uses six numbers of the generator, one sample after another, whichever changes are chosen. So the result depends on
    the generator's state alone, and (with a generator on the CPU) two halves of a batch, one after the other, give what the whole
    does. The generator may be on another device than the images: one on the CPU gives the same changes everywhere.

    Args:
        images: uint8 (num_samples, channels, height, width).
        augmentation: the changes.
        generator: the source of randomness.

    Returns:
        uint8 (num_samples, channels, height, width) on the device of the images, or crop_size for height and width.

    Raises:
        ValueError: for other images, or images too small for the crop.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise ValueError(
            f"images must be uint8 (num_samples, channels, height, width); got {images.dtype} of shape {tuple(images.shape)}."
        )
    uniform = torch.rand(len(images), 6, generator=generator, device=generator.device).to(images.device)
    if augmentation.rotation:
        images = rotate(images, (2 * uniform[:, 0] - 1) * augmentation.rotation)
    mirrored = (uniform[:, 1] < 0.5) & augmentation.flip
    side = augmentation.crop_size
    size = (side, side) if side else (images.shape[2], images.shape[3])
    if augmentation.random_resized:
        images = _random_resized(images, uniform[:, 2:6], size)
    if augmentation.crop_padding:
        images = functional.pad(images, [augmentation.crop_padding] * 4)
    spare_rows, spare_columns = images.shape[2] - size[0], images.shape[3] - size[1]
    if spare_rows < 0 or spare_columns < 0:
        raise ValueError(f"images must be at least as large as the crop; got {tuple(images.shape)} for a crop of {size}.")
    if not (spare_rows or spare_columns or augmentation.flip):
        return images
    tops = (uniform[:, 2] * (spare_rows + 1)).long()
    lefts = (uniform[:, 3] * (spare_columns + 1)).long()
    return windows(images, tops, lefts, mirrored, size=size)


def _random_resized(images: Tensor, uniform: Tensor, size: tuple[int, int]) -> Tensor:
    """A crop of random area, shape and place, resized; a side that would be longer than the image's is cut to it."""
    height, width = images.shape[2:]
    area = SMALLEST_AREA + uniform[:, 2] * (1 - SMALLEST_AREA)
    shape = torch.exp((2 * uniform[:, 3] - 1) * math.log(WIDEST)) * height / width
    shares = torch.stack([(area * shape).sqrt(), (area / shape).sqrt()], dim=1).clamp(max=1)
    centers = (2 * uniform[:, [1, 0]] - 1) * (1 - shares)
    return resized_windows(images, centers, shares, size=size)
