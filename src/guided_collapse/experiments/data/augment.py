"""Augmentation and normalization of whole batches, each sample with its own random parameters."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.experiments.data import Augmentation
from guided_collapse.experiments.data.split import Split

SMALLEST_AREA = 0.08  # of a randomly resized crop, as a fraction of the image
WIDEST = 4 / 3  # largest aspect ratio (width to height) of a randomly resized crop; the smallest is its inverse
RESIZED_TOGETHER = 1024  # number of images, which bounds the memory of their floating-point copies
MAX_IMAGES = 10_000  # number of images used for pixel statistics


def augment(images: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Tensor:
    """Returns the images of a batch after random changes.

    Each sample always takes six numbers from the generator, in order, even if it uses fewer. So the result depends only on the
    generator's state and, with a generator on the CPU, the two halves of a batch give the same result as the whole. The generator
    may be on a different device than the images; a generator on the CPU gives the same changes on every device.

    Images are uint8 (num_samples, channels, height, width), and so is the result; `crop_size`, if set, is its height and width.
    """
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


def windows(images: Tensor, tops: Tensor, lefts: Tensor, mirrored: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Returns a window of each image, images[n, c, tops[n] + i, lefts[n] + j], mirrored where `mirrored` is true."""
    num_samples, channels, _, full_width = images.shape
    height, width = size
    columns = torch.arange(width, device=images.device)
    columns = lefts[:, None] + torch.where(mirrored[:, None], columns.flip(0), columns)
    rows = tops[:, None] + torch.arange(height, device=images.device)
    # One gather over flat pixels, at the same positions in every channel: several times faster than indexing in two dimensions.
    places = (rows[:, :, None] * full_width + columns[:, None, :]).reshape(num_samples, 1, height * width)
    pixels = images.reshape(num_samples, channels, -1).gather(2, places.expand(-1, channels, -1))
    return pixels.view(num_samples, channels, height, width)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Returns uint8 images, each rotated counterclockwise about its center by its own angle in `degrees`, (num_samples,).

    Parts of the result that lie outside the image are black.
    """
    height, width = images.shape[-2:]
    angle = degrees.to(device=images.device, dtype=torch.float32).deg2rad()
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # Rows of the map from a position in the result to one in the image, both in units of half the width and half the height.
    across = torch.stack([cosine, -sine * height / width, zero], dim=1)
    down = torch.stack([sine * width / height, cosine, zero], dim=1)
    return _resample(images, torch.stack([across, down], dim=1), (height, width), outside="zeros")


def _random_resized(images: Tensor, uniform: Tensor, size: tuple[int, int]) -> Tensor:
    """Returns resized crops of random area, aspect ratio and position; crop sides longer than the image's are clipped."""
    height, width = images.shape[2:]
    area = SMALLEST_AREA + uniform[:, 2] * (1 - SMALLEST_AREA)
    shape = torch.exp((2 * uniform[:, 3] - 1) * math.log(WIDEST)) * height / width
    # Width and height of the crop as fractions of the image's, and the column and row of its center, from -1 to 1.
    shares = torch.stack([(area * shape).sqrt(), (area / shape).sqrt()], dim=1).clamp(max=1)
    centers = (2 * uniform[:, [1, 0]] - 1) * (1 - shares)
    return _resample(images, torch.cat([torch.diag_embed(shares), centers[:, :, None]], dim=2), size, outside="border")


def _resample(images: Tensor, maps: Tensor, size: tuple[int, int], *, outside: str) -> Tensor:
    num_samples, channels = images.shape[:2]
    grid = functional.affine_grid(maps, [num_samples, channels, *size], align_corners=False)
    sampled = functional.grid_sample(images.to(torch.float32), grid, padding_mode=outside, align_corners=False)
    return sampled.round_().clamp_(0, 255).to(torch.uint8)


def center_crop(images: Tensor, size: int) -> Tensor:
    """Returns the central size x size pixels of each image; raises ValueError if images are smaller."""
    height, width = images.shape[-2:]
    if size > min(height, width):
        raise ValueError(f"images must be at least as large as the crop; got {height} x {width} for a crop of {size}.")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def resize(images: Tensor, size: int) -> Tensor:
    """Returns uint8 images resized to size x size, bilinearly and with antialiasing."""
    parts = (part.to(torch.float32) for part in torch.split(images, RESIZED_TOGETHER))
    resized = (functional.interpolate(part, size=(size, size), mode="bilinear", antialias=True) for part in parts)
    return torch.cat([part.round_().clamp_(0, 255).to(torch.uint8) for part in resized])


class PixelStatistics(NamedTuple):
    """Mean and standard deviation of each channel, for pixels from 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def pixel_statistics(split: Split) -> PixelStatistics:
    """Returns pixel statistics of up to MAX_IMAGES evenly spaced images; the standard deviation of a constant channel is 1."""
    chosen = range(0, len(split), -(-len(split) // MAX_IMAGES))
    pixels = (split.images[index].to(torch.float64).flatten(1) / 255 for index in chosen)
    moments = (torch.stack([values.mean(dim=1), values.square().mean(dim=1)]) for values in pixels)
    mean, squares = sum(moments, start=torch.zeros(())) / len(chosen)
    std = (squares - mean.square()).clamp(min=0).sqrt()
    std = torch.where(std < 1e-6, torch.ones_like(std), std)
    return PixelStatistics(tuple(mean.tolist()), tuple(std.tolist()))


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Returns (x - mean) / std per channel in float32, with pixels x from 0 to 1; uint8 images are divided by 255."""
    if not len(mean) == len(std) == images.shape[1]:
        raise ValueError(f"mean and std need a value for each of the {images.shape[1]} channels; got {len(mean)} and {len(std)}.")
    largest = 1.0 if images.is_floating_point() else 255.0
    center, scale = (torch.tensor(values, dtype=torch.float32, device=images.device)[:, None, None] for values in (mean, std))
    return images.to(torch.float32, copy=True).sub_(center * largest).div_(scale * largest)
