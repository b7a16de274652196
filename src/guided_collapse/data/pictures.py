"""Image files, decoded to one size."""

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from guided_collapse.data.optional import optional

IN_MEMORY_BYTES = 2 * 2**30  # decoded splits up to this size, 2 GiB, are kept in memory; larger ones are streamed
LARGEST_SIDE = 256  # of an image when no size is asked for

Shape = tuple[int, int, int]


class Encoded(Protocol):
    """Encoded images by index: what one decodes, and what to call it in an error."""

    def __len__(self) -> int:
        """The number of images."""

    def source(self, index: int) -> Path | bytes:
        """The file, or its contents."""

    def name(self, index: int) -> str:
        """Where the image is, for a person."""


class Files:
    """Image files."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = [str(path) for path in paths]  # strings: a million of them go to every worker process

    def __len__(self) -> int:
        return len(self.paths)

    def source(self, index: int) -> Path | bytes:
        """The file."""
        return Path(self.paths[index])

    def name(self, index: int) -> str:
        """Its path."""
        return self.paths[index]


class Pictures(Dataset[Tensor]):
    """Images that are decoded when they are asked for, all of one shape.

    Args:
        encoded: the images.
        shape: (channels, height, width) of the result, with 1 or 3 channels.
    """

    def __init__(self, encoded: Encoded, shape: Shape) -> None:
        self.encoded = encoded
        self.shape = shape

    def __len__(self) -> int:
        """The number of images."""
        return len(self.encoded)

    def __getitem__(self, index: int) -> Tensor:
        return decode(self.encoded.source(index), self.shape, name=self.encoded.name(index))

    @property
    def num_bytes(self) -> int:
        """How much memory they take, all decoded."""
        return len(self) * math.prod(self.shape)

    def to_memory(self) -> Tensor:
        """All of them, uint8 (num_images, channels, height, width)."""
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for index in range(len(self)):
            images[index] = self[index]
        return images


def decode(source: Path | bytes, shape: Shape, *, name: str) -> Tensor:
    """The image in uint8, scaled so that it just covers the shape and cut to its centre.

    Args:
        source: a file, or its contents.
        shape: (channels, height, width), with 1 channel for grey or 3 for colour.
        name: what to call the image in an error.

    Raises:
        ValueError: for an image that cannot be read or has more than 8 bits a channel, with its name.
    """
    channels, height, width = shape
    pillow = optional("PIL.Image", install="guided-collapse[experiments]")
    try:
        with pillow.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            _refuse_deep(image)
            scale = max(width / image.width, height / image.height)
            covering = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
            if scale < 1:  # JPEG can be decoded at a fraction of its size; twice the size wanted is no worse to look at
                image.draft(None, (2 * covering[0], 2 * covering[1]))
            picture = image.convert("L" if channels == 1 else "RGB")
        if picture.size != covering:
            picture = picture.resize(covering, pillow.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise ValueError(f"every image must be readable; {name} is not: {error}") from error
    left, top = (covering[0] - width) // 2, (covering[1] - height) // 2
    pixels = np.array(picture.crop((left, top, left + width, top + height)), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(height, width, channels).transpose(2, 0, 1).copy())


def image_size_of(source: Path | bytes, *, name: str) -> tuple[int, int]:
    """(height, width) to decode images like this one to: its own, but no more than 256 each.

    Raises:
        ValueError: for an image that cannot be read, with its name.
    """
    pillow = optional("PIL.Image", install="guided-collapse[experiments]")
    try:
        with pillow.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            return min(image.height, LARGEST_SIDE), min(image.width, LARGEST_SIDE)
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise ValueError(f"every image must be readable; {name} is not: {error}") from error


def _refuse_deep(image: Any) -> None:
    """Pillow would cut values above 255 off without a word."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"it has pixels of mode {image.mode}; save it with 8 bits a channel.")
