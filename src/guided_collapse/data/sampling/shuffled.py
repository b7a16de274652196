"""Plain shuffled batches."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from guided_collapse.data.sampling.whole_numbers import source_number, whole_number


class ShuffledBatchSampler(Sampler[list[int]]):
    """A batch sampler: each epoch gives every sample once, in random order, in batches as even as they can be.

    The order depends on (seed, epoch) alone.

    Args:
        num_samples: samples in all, at least 1.
        batch_size: samples in a batch, at most.
        seed: source of the order.

    Raises:
        ValueError: for sizes that are not positive whole numbers, or a seed that is not a whole number, at least 0.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int = 0) -> None:
        if num_samples < 1 or batch_size < 1:
            raise ValueError(f"num_samples and batch_size must be at least 1; got {num_samples} and {batch_size}.")
        self.num_samples, self.batch_size = whole_number(num_samples, "num_samples"), whole_number(batch_size, "batch_size")
        self.seed, self.epoch = source_number(seed, "seed"), 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration.

        Raises:
            ValueError: for an epoch that is not a whole number, or negative.
        """
        self.epoch = source_number(epoch, "epoch")

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return -(-self.num_samples // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        for batch in np.array_split(order, len(self)):
            yield batch.tolist()
