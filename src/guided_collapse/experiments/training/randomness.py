"""Independent sources of randomness from one seed."""

import numpy as np
import torch


def generator(*key: int) -> torch.Generator:
    """A generator on the CPU that depends on these numbers alone: the seed, what it is for, the epoch, the process."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


BACKBONE, HEAD, OPTIMIZER, AUGMENTATION = range(4)
