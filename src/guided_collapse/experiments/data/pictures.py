"""Decodes images to uint8 tensors of equal size.

Uses Pillow directly, because Hugging Face `datasets` opens every format, does not limit the size of scaled images, and does not
name damaged files.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

IN_MEMORY_BYTES = 2 * 2**30  # decoded splits up to this size, 2 GiB, are kept in memory; larger ones are streamed
LARGEST_SIDE = 256  # the largest height and width of images if no size is requested
MAX_INSPECTED = 1000  # images that are opened to find the most common size
MAX_PIXELS = 89_478_485  # of an image after scaling; the same as Pillow's limit for stored images
MAX_PIXELS_RATIO = 1000  # of a scaled image before it is cropped, relative to the result
# No other format is opened, whatever the file's name: some of Pillow's other formats start programs (EPS starts Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})

Shape = tuple[int, int, int]


class Pictures(Dataset[Tensor]):
    """Images that are decoded on access, all to the same shape.

    Args:
        sources: item i is the path of image i as a string, its encoded bytes, or a mapping with its `bytes`, as in `datasets`.
        shape: (channels, height, width) of the result, with 1 or 3 channels.
        names: the name of each image in errors; if None, its row number in `where`.
        where: the file or folder with the images, for errors.
    """

    def __init__(self, sources: Sequence[Any], shape: Shape, *, names: Sequence[str] | None = None, where: str = "") -> None:
        self.sources, self.shape, self.names, self.where = sources, shape, names, where

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.sources)

    def __getitem__(self, index: int) -> Tensor:
        source = self.sources[index]
        if not isinstance(source, str | bytes):
            source = (source or {}).get("bytes") or b""
        name = self.names[index] if self.names is not None else f"row {index}"
        return decode(source, self.shape, name=f"{name} in {self.where}" if self.where else name)

    @property
    def fit_in_memory(self) -> bool:
        """Whether the decoded images are few enough to keep in memory."""
        return len(self) * math.prod(self.shape) <= IN_MEMORY_BYTES

    def to_memory(self) -> Tensor:
        """Returns all images, uint8 (num_images, channels, height, width)."""
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for index in range(len(self)):
            images[index] = self[index]
        return images


@contextmanager
def opened(source: str | bytes, *, name: str) -> Iterator[Image.Image]:
    """Yields an image, of which only the header has been read; any error inside the context becomes a ValueError with the name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", message="Palette images with Transparency")  # transparency is not used
            with Image.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
                if image.mode.startswith(("I", "F")):  # Pillow would silently clip values above 255
                    raise ValueError(f"it has pixels of mode {image.mode}; save it with 8 bits per channel.")
                yield image
    except UnidentifiedImageError as error:
        raise ValueError(f"every image must be readable; {name} is not: it is none of {', '.join(FORMATS)}, or damaged.") from error
    except Exception as error:  # a damaged image can fail in any layer of Pillow
        raise ValueError(f"every image must be readable; {name} is not: {error}") from error


def decode(source: str | bytes, shape: Shape, *, name: str) -> Tensor:
    """Returns an image as uint8 (channels, height, width), scaled to cover that size and center-cropped.

    The source is the path of an image file, or its contents.

    Raises:
        ValueError: for an unreadable image, or one so narrow that scaling it would take too much memory; the message names it.
    """
    channels, height, width = shape
    with opened(source, name=name) as image:
        scale = max(width / image.width, height / image.height)
        covering = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        most = min(MAX_PIXELS, MAX_PIXELS_RATIO * width * height)
        if math.prod(covering) > most:  # checked before decoding: a few bytes can hold a million rows of one pixel
            raise ValueError(
                f"it has {image.width} x {image.height} pixels, which would be {covering[0]} x {covering[1]} when scaled, "
                f"more than {most:,}; crop its longer side."
            )
        if scale < 1:  # JPEG can be decoded at a fraction of its size; twice the requested size keeps the quality
            image.draft(None, (2 * covering[0], 2 * covering[1]))
        picture = image.convert("L" if channels == 1 else "RGB")
        if picture.size != covering:
            picture = picture.resize(covering, Image.Resampling.BILINEAR)
    left, top = (covering[0] - width) // 2, (covering[1] - height) // 2
    pixels = np.array(picture.crop((left, top, left + width, top + height)), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(height, width, channels).transpose(2, 0, 1).copy())


def usual_size(paths: Sequence[str]) -> tuple[int, int]:
    """Returns the most common (height, width) among up to MAX_INSPECTED evenly spaced images, both clipped to LARGEST_SIDE."""
    sizes: Counter[tuple[int, int]] = Counter()
    for path in paths[:: -(-len(paths) // MAX_INSPECTED)]:
        with opened(path, name=path) as image:
            sizes[image.height, image.width] += 1
    height, width = sizes.most_common(1)[0][0]
    return min(height, LARGEST_SIDE), min(width, LARGEST_SIDE)
