"""Image files, decoded to one size."""

import math
import stat
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from guided_collapse.lazy import optional

IN_MEMORY_BYTES = 2 * 2**30  # decoded splits up to this size, 2 GiB, are kept in memory; larger ones are streamed
LARGEST_SIDE = 256  # of an image when no size is asked for
MOST_LOOKED_AT = 1000  # images, to find the size that most have
MOST_PIXELS = 89_478_485  # of an image when it is scaled; the same as Pillow's bound on images as they are
LONGEST_SHAPE = 1000  # times the pixels that are wanted, at most, before an image is cut to them
# Nothing else is opened, whatever a file is called: of Pillow's other formats some start programs (EPS starts Ghostscript).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})

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

    def to_memory(self) -> Tensor:
        """All of them, uint8 (num_images, channels, height, width)."""
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for index in range(len(self)):
            images[index] = self[index]
        return images


def fits_in_memory(num_images: int, shape: Shape) -> bool:
    """Whether a split of so many decoded images is kept in memory; a larger one is streamed."""
    return num_images * math.prod(shape) <= IN_MEMORY_BYTES


@contextmanager
def opened(source: Path | bytes, *, name: str) -> Iterator[Any]:
    """The image as Pillow has it, of which only the header is read; of several frames the first.

    Args:
        source: a file, or its contents.
        name: what to call the image in an error.

    Raises:
        ValueError: for whatever goes wrong with the image here or in the block, with its name: a file that is no regular one, is of
            none of FORMATS or cannot be read; more than 8 bits a channel; more pixels than Pillow trusts.
    """
    pillow = _pillow()
    try:
        if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
            raise ValueError("it is not a regular file.")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            warnings.filterwarnings("ignore", message="Palette images with Transparency")  # what shows through is not of interest
            with pillow.open(BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
                _refuse_deep(image)
                yield image
    except pillow.UnidentifiedImageError as error:
        raise ValueError(f"every image must be readable; {name} is not: it is none of {', '.join(FORMATS)}, or damaged.") from error
    except Exception as error:  # a damaged image can fail in any of the many layers that take it apart
        raise ValueError(f"every image must be readable; {name} is not: {error}") from error


def decode(source: Path | bytes, shape: Shape, *, name: str) -> Tensor:
    """The image in uint8, scaled so that it just covers the shape and cut to its center.

    Args:
        source: a file, or its contents.
        shape: (channels, height, width), with 1 channel for gray or 3 for color.
        name: what to call the image in an error.

    Raises:
        ValueError: for an image that `opened` refuses or that is so long and narrow that it would have more than MOST_PIXELS, or
            LONGEST_SHAPE times those of the shape, when scaled, with its name.
    """
    channels, height, width = shape
    with opened(source, name=name) as image:
        scale = max(width / image.width, height / image.height)
        covering = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
        _refuse_narrow(image, covering, most=min(MOST_PIXELS, LONGEST_SHAPE * width * height))
        if scale < 1:  # JPEG can be decoded at a fraction of its size; twice the size wanted is no worse to look at
            image.draft(None, (2 * covering[0], 2 * covering[1]))
        picture = image.convert("L" if channels == 1 else "RGB")
        if picture.size != covering:
            picture = picture.resize(covering, _pillow().Resampling.BILINEAR)
    left, top = (covering[0] - width) // 2, (covering[1] - height) // 2
    pixels = np.array(picture.crop((left, top, left + width, top + height)), dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(height, width, channels).transpose(2, 0, 1).copy())


def usual_size(encoded: Encoded) -> tuple[int, int]:
    """(height, width) to decode images to that are asked for in no other size: that of most of them, but no more than 256 each.

    The headers of up to MOST_LOOKED_AT images are read, at even distances. Of sizes that are equally frequent the first counts.

    Raises:
        ValueError: for an image that `opened` refuses.
    """
    sizes: Counter[tuple[int, int]] = Counter()
    for index in range(0, len(encoded), -(-len(encoded) // MOST_LOOKED_AT)):
        with opened(encoded.source(index), name=encoded.name(index)) as image:
            sizes[image.height, image.width] += 1
    height, width = sizes.most_common(1)[0][0]
    return min(height, LARGEST_SIDE), min(width, LARGEST_SIDE)


def _pillow() -> Any:
    return optional("PIL.Image", extra="experiments", package="pillow")


def _refuse_deep(image: Any) -> None:
    """Pillow would cut values above 255 off without a word."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"it has pixels of mode {image.mode}; save it with 8 bits a channel.")


def _refuse_narrow(image: Any, covering: tuple[int, int], *, most: int) -> None:
    """Before anything is decoded: a few bytes can hold a million rows of one pixel."""
    if math.prod(covering) > most:
        raise ValueError(
            f"it has {image.width} x {image.height} pixels, which would be {covering[0]} x {covering[1]} when scaled, "
            f"more than {most:,}; cut it to a less narrow shape."
        )
