"""The samples of a few classes at a time: their means, their scatter about them, and their numerical ranks."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.formulas.products import add_outer_products, safe_in_float32

TOLERANCE = 1e-4
"""How much of the nuclear norm may lie in singular values that rounding errors hide."""


class WithinClasses(NamedTuple):
    """What some classes are like, each on its own."""

    means: Tensor
    """(num_classes, feature_dim), float64."""
    scatter: Tensor
    """sum |h - mu_c|^2 of each class, (num_classes,), float64."""
    ranks: Tensor
    """The numerical rank of each class, (num_classes,), float64."""


def add_small_classes(scatter: Tensor, features: Tensor, samples: Sequence[Tensor], buffer: Tensor) -> WithinClasses:
    """Adds the outer products of the deviations of some classes to the upper block triangle of `scatter`.

    Args:
        scatter: (feature_dim, feature_dim), float64.
        features: (num_samples, feature_dim).
        samples: the rows of each class, not more in all than the buffer has.
        buffer: (num_rows, feature_dim), to work in, of the type that products are to be taken in.
    """
    sizes = [len(indices) for indices in samples]
    classes = torch.arange(len(sizes), device=features.device).repeat_interleave(torch.tensor(sizes, device=features.device))
    deviations, means = centered_rows(features, torch.cat(tuple(samples)), classes, buffer)
    add_outer_products(scatter, deviations)
    squares, ranks, rounding = [], [], torch.finfo(buffer.dtype).eps
    for own, mean, indices in zip(torch.split(deviations, sizes), means, samples, strict=True):
        gram = (own @ own.T).to(torch.float64)
        squares.append(gram.diagonal().sum())
        # The Gram matrix of the samples themselves: |mu|^2 has to come in as float64, beside it deviations can be very small.
        along = (own @ mean.to(own.dtype)).to(torch.float64)
        gram += along[:, None] + along + mean @ mean
        ranks.append(_rank(gram, rounding * squares[-1], features, indices, len(buffer)))
    return WithinClasses(means, torch.stack(squares), torch.stack(ranks))


def add_large_class(scatter: Tensor, features: Tensor, samples: Tensor, buffer: Tensor) -> WithinClasses:
    """The same for one class of at least feature_dim samples, whose own scatter is the smaller Gram matrix.

    Args:
        scatter: (feature_dim, feature_dim), float64.
        features: (num_samples, feature_dim).
        samples: the rows of the class, of which so many are taken at a time as the buffer has.
        buffer: (num_rows, feature_dim), to work in, of the type that products are to be taken in.
    """
    own_scatter, part_means = torch.zeros_like(scatter), []
    parts = torch.split(samples, len(buffer))
    for part in parts:
        deviations, mean = centered_rows(features, part, torch.zeros_like(part), buffer)
        add_outer_products(own_scatter, deviations)
        part_means.append(mean[0])
    # Between the parts lies n_p (mu_p - mu)(mu_p - mu)'. Nothing is subtracted, so nothing cancels and nothing gets negative.
    means, sizes = torch.stack(part_means), scatter.new_tensor([len(part) for part in parts])
    mean = sizes @ means / len(samples)
    add_outer_products(own_scatter, (means - mean) * sizes.sqrt()[:, None])
    scatter += own_scatter
    squares = own_scatter.diagonal().sum()
    error = torch.finfo(buffer.dtype).eps * squares
    rank = _rank(own_scatter.addr_(mean, mean, alpha=len(samples)), error, features, samples, len(buffer))
    return WithinClasses(mean[None], squares[None], rank[None])


def _rank(gram: Tensor, error: Tensor, features: Tensor, samples: Tensor, rows_at_once: int) -> Tensor:
    """The numerical rank from a Gram matrix with errors, or from an exact one where these could be seen in it."""
    values = squared_singular_values(gram)
    if hidden_by(error, values):
        values = squared_singular_values(exact_gram(features, samples, rows_at_once))
    return numerical_rank(values)


class CenteredRows(NamedTuple):
    """Samples relative to the means of their classes."""

    deviations: Tensor
    """(num_rows, feature_dim)."""
    means: Tensor
    """(num_classes, feature_dim), float64."""


def centered_rows(features: Tensor, indices: Tensor, classes: Tensor, buffer: Tensor) -> CenteredRows:
    """The samples at `indices` minus the means of their classes, in a precision that their products can be taken in.

    Args:
        features: (num_samples, feature_dim).
        indices: (num_rows,).
        classes: which class each of these rows is of, (num_rows,), ascending from 0 without a gap.
        buffer: (num_rows or more, feature_dim), of the type that products are to be taken in: the result may lie in it. Memory that
            has been used before is several times quicker than new one.
    """
    num_classes, rows = int(classes[-1]) + 1, buffer[: len(indices)]
    if features.dtype == rows.dtype:
        torch.index_select(features, 0, indices, out=rows)
    else:
        rows.copy_(features.index_select(0, indices))
    found = _centered(rows, classes, num_classes)
    if rows.dtype != torch.float64 and not safe_in_float32(found.deviations):
        return _centered(features.index_select(0, indices).to(torch.float64), classes, num_classes)
    return found


def _centered(rows: Tensor, classes: Tensor, num_classes: int) -> CenteredRows:
    """Rows minus the means of their classes; overwrites `rows`."""
    counts = torch.bincount(classes, minlength=num_classes)[:, None]
    means = rows.new_zeros(num_classes, rows.shape[1], dtype=torch.float64)
    # The sum that makes up a mean has a rounding error, which can be larger than the deviations of a collapsed class. The mean of
    # what is left after the first subtraction corrects it.
    for _ in range(2):
        part = rows.new_zeros(num_classes, rows.shape[1]).index_add_(0, classes, rows) / counts
        rows -= part if num_classes == 1 else part.index_select(0, classes)
        means += part
    return CenteredRows(rows, means)


def numerical_rank(values: Tensor) -> Tensor:
    """|H_c|_*^2 / |H_c|_F^2, a scalar: how many directions the features of a class fill.

    As the paper's code has it. The nuclear norm |.|_* is the sum of the singular values. The features are not centered: a class
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
