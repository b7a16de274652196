"""Plain shuffled batches."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class ShuffledBatchSampler(Sampler[list[int]]):
    """A batch sampler: each epoch gives every sample once, in random order, in batches as even as they can be.

    The global batch is divided among the processes. The order depends on (seed, epoch) alone.

    Args:
        num_samples: samples in all.
        batch_size: samples in a global batch, at most.
        num_replicas: processes that share a batch.
        rank: this process.
        seed: source of the order.

    Raises:
        ValueError: if a process would have an empty batch.
    """

    def __init__(self, num_samples: int, batch_size: int, *, num_replicas: int = 1, rank: int = 0, seed: int = 0) -> None:
        self.num_samples, self.batch_size = num_samples, batch_size
        self.num_replicas, self.rank = num_replicas, rank
        self.seed, self.epoch = seed, 0
        if batch_size < 1 or num_samples // len(self) < num_replicas:
            raise ValueError(
                "batch_size must be positive and every process needs a sample in every batch; "
                f"got num_samples={num_samples}, batch_size={batch_size}, num_replicas={num_replicas}."
            )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        """The number of batches of an epoch, the same in every process."""
        return -(-self.num_samples // max(self.batch_size, 1))

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_samples)
        for batch in np.array_split(order, len(self)):
            yield batch[self.rank :: self.num_replicas].tolist()
