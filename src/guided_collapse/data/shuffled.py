"""Plain shuffled batches."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class ShuffledBatchSampler(Sampler[list[int]]):
    """A batch sampler: each epoch gives every sample once, in random order, in batches as even as they can be.

    The order depends on (seed, epoch) alone.

    Args:
        num_samples: samples in all, at least 1.
        batch_size: samples in a batch, at most.
        seed: source of the order.

    Raises:
        ValueError: for sizes that are not positive.
    """

    def __init__(self, num_samples: int, batch_size: int, *, seed: int = 0) -> None:
        if num_samples < 1 or batch_size < 1:
            raise ValueError(f"num_samples and batch_size must be at least 1; got {num_samples} and {batch_size}.")
        self.num_samples, self.batch_size = num_samples, batch_size
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        return -(-self.num_samples // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        for batch in np.array_split(order, len(self)):
            yield batch.tolist()
