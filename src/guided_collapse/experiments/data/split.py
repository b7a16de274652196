"""Labeled images, in memory or streamed."""

from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with labels.

    Attributes:
        images: uint8 (num_samples, channels, height, width) if they are in memory; otherwise a map-style dataset whose item i is
            the uint8 image (channels, height, width) of sample i, all of one size.
        labels: int64 (num_samples,), class indices, on the CPU.

    Raises:
        ValueError: for images and labels that do not belong together.
    """

    images: Tensor | Dataset[Tensor]
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64 or self.labels.device.type != "cpu":
            raise ValueError(
                "labels must be int64 (num_samples,) on the CPU; "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)} on {self.labels.device}."
            )
        if isinstance(self.images, Tensor) and (self.images.dtype != torch.uint8 or self.images.ndim != 4):
            raise ValueError(
                "images in memory must be uint8 (num_samples, channels, height, width); "
                f"got {self.images.dtype} of shape {tuple(self.images.shape)}."
            )
        num_images = len(cast(Sized, self.images))
        if num_images != len(self.labels) or num_images == 0:
            raise ValueError(f"each image needs a label, and there must be at least one; got {num_images} and {len(self.labels)}.")
        if int(self.labels.min()) < 0:
            raise ValueError(f"labels must not be negative; got {int(self.labels.min())}.")

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        image = self.images[0]
        return image.shape[0], image.shape[1], image.shape[2]

    def take(self, indices: Tensor) -> "Split":
        """The samples of these indices, in their order.

        Args:
            indices: int64 (num_taken,).
        """
        if isinstance(self.images, Tensor):
            return Split(self.images[indices.to(self.images.device)], self.labels[indices])
        return Split(Subset(self.images, indices.tolist()), self.labels[indices])


@dataclass(frozen=True, eq=False)
class ImageData:
    """A training and a test split of one kind of image.

    Attributes:
        name: what to call it.
        train: the samples to train on.
        test: the samples to judge by.
        class_names: one for each class index.
        location: the file or folder that it was read from; None if it came with a package.

    Raises:
        ValueError: for fewer than two classes, a label without a name, or images of different sizes.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    location: Path | None = None

    def __post_init__(self) -> None:
        if len(self.class_names) < 2:
            raise ValueError(f"{self.name} must have at least two classes; got {', '.join(self.class_names) or 'none'}.")
        for split_name, split in (("training", self.train), ("test", self.test)):
            if int(split.labels.max()) >= len(self.class_names):
                raise ValueError(
                    f"labels of {self.name} must be below its {len(self.class_names)} classes; "
                    f"got {int(split.labels.max())} among the {split_name} labels."
                )
        if self.train.image_shape != self.test.image_shape:
            raise ValueError(
                f"training and test images of {self.name} must have one shape; "
                f"got {self.train.image_shape} and {self.test.image_shape}. Set image_size."
            )

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return self.train.image_shape
