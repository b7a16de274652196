"""The numerical rank of the features of a class."""

import torch
from torch import Tensor

from guided_collapse.metrics.formulas.scatter import add_outer_products

TOLERANCE = 1e-4
"""How much of the nuclear norm may lie in singular values that rounding errors hide."""


def numerical_rank(values: Tensor) -> Tensor:
    """|H_c|_*^2 / |H_c|_F^2, a scalar: how many directions the features of a class fill.

    As the paper's code has it. The nuclear norm |.|_* is the sum of the singular values. The features are not centred: a class
    that has collapsed to its mean has rank 1, one that fills k directions evenly rank k, one of zeros rank 0.

    Args:
        values: the squared singular values of H_c, of which there may be more than there are directions, float64.
    """
    total = values.sum()
    return torch.where(total > 0, values.sqrt().sum().square() / torch.where(total > 0, total, 1.0), 0.0)


def squared_singular_values(gram: Tensor) -> Tensor:
    """The eigenvalues of a Gram matrix, (n,).

    Args:
        gram: H_c' H_c or H_c H_c', whichever is smaller: (n, n), float64, of which the upper triangle is read. Its eigenvalues have
            errors of about 1e-16 of the largest, so singular values below 1e-8 of the largest are not resolved.
    """
    return torch.linalg.eigvalsh(gram, UPLO="U").clamp(min=0)


def hidden_by(error: Tensor, values: Tensor) -> bool:
    """Whether squared singular values with this error leave the nuclear norm uncertain.

    A square root makes a large error of a small one at zero: singular values that vanish come out as sqrt(error), and a class that
    fills few of many dimensions has hundreds of them.
    """
    return bool((values < error).sum() * error.sqrt() > TOLERANCE * values.sqrt().sum())


def exact_gram(features: Tensor, samples: Tensor, rows_at_once: int) -> Tensor:
    """The smaller Gram matrix of the samples of a class in float64, its upper triangle at least.

    Args:
        features: (num_samples, feature_dim).
        samples: the rows of the class.
        rows_at_once: how many of them to work on at a time.
    """
    feature_dim = features.shape[1]
    if len(samples) < feature_dim:
        rows = features[samples].to(torch.float64)
        return rows @ rows.T
    gram = torch.zeros(feature_dim, feature_dim, dtype=torch.float64, device=features.device)
    for part in torch.split(samples, rows_at_once):
        add_outer_products(gram, features[part].to(torch.float64))
    return gram
