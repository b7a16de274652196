"""Labeled images: where they come from, how they are augmented and put into batches. Importing this loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Augmentation:
    """The random changes applied to a training image, in this order: rotation, crop, flip.

    Attributes:
        flip: mirror horizontally with probability 1/2.
        crop_padding: black pixels added on each side before a crop at a random position.
        rotation: rotate by an angle from -rotation to rotation, in degrees.
        crop_size: height and width of the crop; None keeps those of the image.
        random_resized: crop a random area (8 % to 100 %) and aspect ratio (3:4 to 4:3) and resize it to `crop_size`, as is usual
            for ImageNet, instead of a crop of fixed area.
    """

    flip: bool = False
    crop_padding: int = 0
    rotation: float = 0.0
    crop_size: int | None = None
    random_resized: bool = False

    def __post_init__(self) -> None:
        if self.random_resized and self.crop_padding:
            raise ValueError(f"random_resized leaves no room for padding; got crop_padding={self.crop_padding}. Choose one.")
