"""Labeled images: loading, augmentation and batches. Importing this package does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Augmentation:
    """The random changes applied to a training image, in this order: rotation, crop, flip."""

    flip: bool = False  # mirror with probability 1/2
    crop_padding: int = 0  # black pixels added on each side before a crop at a random position
    rotation: float = 0.0  # largest angle in degrees, in either direction
    crop_size: int | None = None  # height and width of the crop; None keeps those of the image
    random_resized: bool = False  # crop 8 % to 100 % of the area at an aspect ratio of 3:4 to 4:3, resized to `crop_size`

    def __post_init__(self) -> None:
        if self.random_resized and self.crop_padding:
            raise ValueError(f"random_resized cannot be combined with padding; got crop_padding={self.crop_padding}. Choose one.")
