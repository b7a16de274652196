"""The numerical rank of the features of a class."""

import torch
from torch import Tensor


def numerical_rank(gram: Tensor) -> Tensor:
    """|H_c|_*^2 / |H_c|_F^2, a scalar: how many directions the features of a class fill, from their Gram matrix.

    As the paper's code has it. The nuclear norm |.|_* is the sum of the singular values. The features are not centred: a class
    that has collapsed to its mean has rank 1, one that fills k directions evenly rank k, one of zeros rank 0.

    Args:
        gram: H_c' H_c or H_c H_c', whichever is smaller: (n, n), float64, of which the upper triangle is read. Its eigenvalues are
            the squared singular values, with errors of about 1e-16 of the largest, so singular values below 1e-8 of the largest are
            not resolved.
    """
    values = torch.linalg.eigvalsh(gram, UPLO="U").clamp(min=0)
    total = values.sum()
    return torch.where(total > 0, values.sqrt().sum().square() / torch.where(total > 0, total, 1.0), 0.0)
