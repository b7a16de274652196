"""Throughput of augmentation and normalization in images per second, 3 x 32 x 32, with and without rotation.

    python benchmarks/augmentation.py

Runs on one thread and on two. Two threads synchronize at every operation, which is slow on a busy machine.
"""

import statistics
import time

import torch

from guided_collapse.experiments.data import Augmentation
from guided_collapse.experiments.data.augment import augment, normalize
from guided_collapse.experiments.data.known import KNOWN

BATCH_SIZE = 256
BATCHES = 40
REPETITIONS = 5
CASES = {
    "flip + crop(4) + normalize": Augmentation(flip=True, crop_padding=4),
    "flip + crop(4) + rotation(15) + normalize": Augmentation(flip=True, crop_padding=4, rotation=15.0),
}


def images_per_second(augmentation: Augmentation) -> float:
    known = KNOWN["cifar10"]
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (BATCH_SIZE, 3, 32, 32), dtype=torch.uint8, generator=generator)
    start = time.perf_counter()
    for _ in range(BATCHES):
        normalize(augment(images, augmentation, generator), known.mean, known.std)
    return BATCHES * BATCH_SIZE / (time.perf_counter() - start)


def main() -> None:
    print(f"torch {torch.__version__}, batches of {BATCH_SIZE}; median of {REPETITIONS} and range")
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        for name, augmentation in CASES.items():
            images_per_second(augmentation)
            rates = [images_per_second(augmentation) for _ in range(REPETITIONS)]
            spread = f"({min(rates):,.0f} to {max(rates):,.0f})"
            print(f"{num_threads} thread(s), {name}: {statistics.median(rates):,.0f} images/s {spread}")


if __name__ == "__main__":
    main()
