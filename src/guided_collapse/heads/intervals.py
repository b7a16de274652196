"""How often a lagged frame moves, if nobody says."""

import math

from guided_collapse.geometry.simplex import has_simplex_etf
from guided_collapse.geometry.training_step import rounds_in_training

MOST = 1000

BATCH_SIZE = 128
# Of a forward pass and a backward pass through a network of ten million multiplications, which is a small one.
OPERATIONS_PER_SAMPLE = 3 * 2 * 10**7
SHARE_OF_TRAINING = 0.1


def default_every(feature_dim: int, num_classes: int) -> int:
    """After how many steps a lagged frame moves: 1 for a simplex ETF, otherwise so many that it costs a tenth of training.

    To move it with r rounds, d x d products are summed over C rows and a d x d matrix is applied to each, 1 + 3 r times:
    4 C d^2 (1 + 3 r) operations. A step of training is taken to be a batch of 128, each sample with 4 C d operations in the head
    and 6e7 in a small network. The result is at most 1000: 1 for 1000 classes and 128 features, 14 for 1000 and 512, 51 for
    100,000 and 256.
    """
    if has_simplex_etf(feature_dim, num_classes):
        return 1
    move = 4 * num_classes * feature_dim**2 * (1 + 3 * rounds_in_training(num_classes, feature_dim))
    step = BATCH_SIZE * (4 * num_classes * feature_dim + OPERATIONS_PER_SAMPLE)
    return min(math.ceil(move / (SHARE_OF_TRAINING * step)), MOST)
