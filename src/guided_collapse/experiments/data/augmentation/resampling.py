"""Shifts, rotations and crops of whole batches, each sample with its own parameters."""

import torch
from torch import Tensor
from torch.nn import functional

RESIZED_TOGETHER = 1024  # images, to bound the memory of their floating-point form


def center_crop(images: Tensor, size: int) -> Tensor:
    """The middle of each image.

    Args:
        images: (num_samples, channels, height, width).
        size: height and width of the result, at most those of the images.

    Raises:
        ValueError: for images that are smaller.
    """
    height, width = images.shape[-2:]
    if size > min(height, width):
        raise ValueError(f"images must be at least as large as the crop; got {height} x {width} for a crop of {size}.")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size]


def resize(images: Tensor, size: int) -> Tensor:
    """Images of another size, smoothed where they shrink.

    Args:
        images: uint8 (num_samples, channels, height, width).
        size: height and width of the result.
    """
    resized = torch.empty(*images.shape[:2], size, size, dtype=torch.uint8, device=images.device)
    for start in range(0, len(images), RESIZED_TOGETHER):
        part = images[start : start + RESIZED_TOGETHER].to(torch.float32)
        part = functional.interpolate(part, size=(size, size), mode="bilinear", antialias=True)
        resized[start : start + RESIZED_TOGETHER] = part.round_().clamp_(0, 255).to(torch.uint8)
    return resized


def windows(images: Tensor, tops: Tensor, lefts: Tensor, mirrored: Tensor, *, size: tuple[int, int]) -> Tensor:
    """One window of each image, some of them mirrored: out[n, c, i, j] = images[n, c, tops[n] + i, lefts[n] + j].

    A mirrored window has its columns in reverse, j -> width - 1 - j.

    Args:
        images: (num_samples, channels, height, width), any dtype.
        tops: int64 (num_samples,), first row.
        lefts: int64 (num_samples,), first column.
        mirrored: bool (num_samples,).
        size: (height, width) of the windows.
    """
    num_samples, channels, _, full_width = images.shape
    height, width = size
    columns = torch.arange(width, device=images.device)
    columns = lefts[:, None] + torch.where(mirrored[:, None], columns.flip(0), columns)
    rows = tops[:, None] + torch.arange(height, device=images.device)
    # One gather over flat pixels, the same places in every channel: several times quicker than indexing in two dimensions.
    places = (rows[:, :, None] * full_width + columns[:, None, :]).reshape(num_samples, 1, height * width)
    pixels = images.reshape(num_samples, channels, -1).gather(2, places.expand(-1, channels, -1))
    return pixels.view(num_samples, channels, height, width)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Each image turned about its center, anticlockwise; black comes in at the corners.

    Args:
        images: uint8 (num_samples, channels, height, width).
        degrees: (num_samples,), float.

    Returns:
        uint8, the same shape, interpolated bilinearly.
    """
    height, width = images.shape[-2:]
    angle = degrees.to(device=images.device, dtype=torch.float32).deg2rad()
    cosine, sine, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # Rows of the map from a place in the result to its place in the image, both in units of half the width and half the height.
    across = torch.stack([cosine, -sine * height / width, zero], dim=1)
    down = torch.stack([sine * width / height, cosine, zero], dim=1)
    return _resample(images, torch.stack([across, down], dim=1), (height, width), outside="zeros")


def resized_windows(images: Tensor, centers: Tensor, shares: Tensor, *, size: tuple[int, int]) -> Tensor:
    """One window of each image, resized to one size.

    Args:
        images: uint8 (num_samples, channels, height, width).
        centers: (num_samples, 2), column and row of the window's center, from -1 at the left or upper edge to 1.
        shares: (num_samples, 2), width and height of the window as shares of the image's.
        size: (height, width) of the result.

    Returns:
        uint8 (num_samples, channels, *size), interpolated bilinearly.
    """
    matrices = torch.diag_embed(shares)
    return _resample(images, torch.cat([matrices, centers[:, :, None]], dim=2), size, outside="border")


def _resample(images: Tensor, maps: Tensor, size: tuple[int, int], *, outside: str) -> Tensor:
    num_samples, channels = images.shape[:2]
    grid = functional.affine_grid(maps, [num_samples, channels, *size], align_corners=False)
    sampled = functional.grid_sample(images.to(torch.float32), grid, padding_mode=outside, align_corners=False)
    return sampled.round_().clamp_(0, 255).to(torch.uint8)
