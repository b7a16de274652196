"""Makes 80 classes from the ten of CIFAR-10: every image is rotated by a multiple of 90 degrees, and half of them are negatives.

    python -m results.turned [--data-root DIR] [--out cifar10-turned]

Writes class folders `train/<class>-<degrees>[-negative]`, 50 images each, and `test/...`, 25 each. No image is used in two classes.
"""

import argparse
from pathlib import Path

from PIL import Image
from torch import Tensor

from guided_collapse.experiments.data.sources import load_data
from guided_collapse.experiments.data.split import Split

IMAGES_PER_CLASS = {"train": 50, "test": 25}
KINDS = [(turns, negative) for negative in (False, True) for turns in range(4)]


def write(split: Split, class_names: tuple[str, ...], count: int, out: Path) -> None:
    """Writes the first images of every class, `count` for each transformation."""
    for label, name in enumerate(class_names):
        chosen = split.images[split.labels == label][: count * len(KINDS)]
        for place, image in enumerate(chosen):
            turns, negative = KINDS[place % len(KINDS)]
            folder = out / f"{name}-{90 * turns}{'-negative' if negative else ''}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(_changed(image, turns, negative).permute(1, 2, 0).numpy()).save(folder / f"{place:05}.png")


def _changed(image: Tensor, turns: int, negative: bool) -> Tensor:
    image = image.rot90(turns, dims=(1, 2))
    return 255 - image if negative else image


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m results.turned", description=__doc__)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("cifar10-turned"))
    wanted = parser.parse_args()
    data = load_data("cifar10", root=wanted.data_root)
    for part, split in (("train", data.train), ("test", data.test)):
        write(split, data.class_names, IMAGES_PER_CLASS[part], wanted.out / part)
