"""Class statistics: counts, class means and within-class scatter, from all features at once or merged from parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from guided_collapse.geometry.operations import float32_is_float32

GlobalMean = Literal["samples", "classes"]

CHUNK_ENTRIES = 2**20
"""Number of entries processed at a time: 4 MB in float32, which fit into the cache."""
UNCERTAIN_SCATTER = 1000 * torch.finfo(torch.float32).eps
"""Scatter along a direction below this fraction of the scatter of its dimensions may be nothing but rounding errors of float32."""
UNCERTAIN_RANK = 1e-4
"""Maximum share of the nuclear norm that may come from singular values below rounding errors."""
COLUMN_BLOCKS = 4


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Counts, means and scatter of classes. Classes without samples have no mean, and therefore no row in the class means."""

    counts: Tensor  # (num_classes,), int64
    class_means: Tensor  # (num_present, feature_dim), float64, of the classes that have samples, in order
    scatter: Tensor  # sum over samples of (h - mu_c)(h - mu_c)', (feature_dim, feature_dim), float64
    class_scatter: Tensor  # sum over the samples of a class of |h - mu_c|^2, (num_present,), float64
    numerical_ranks: Tensor | None = None  # (num_present,), float64; None if features were not kept together

    @property
    def present(self) -> Tensor:
        """The classes that have samples, (num_present,)."""
        return self.counts.nonzero().flatten()

    @property
    def rounding(self) -> Tensor:
        """Estimated rounding errors of class means, and of deviations from class means, in each dimension, (feature_dim,)."""
        return 64 * torch.finfo(torch.float64).eps * self.class_means.abs().amax(dim=0)

    @property
    def num_samples(self) -> int:
        """Number of samples, N."""
        return int(self.counts.sum())

    def global_mean(self, kind: GlobalMean) -> Tensor:
        """Returns mu_G, (feature_dim,): the mean of all samples, or of the class means."""
        if kind == "classes":
            return self.class_means.mean(dim=0)
        return (self.counts[self.present].to(torch.float64) / self.num_samples) @ self.class_means


def check_global_mean(kind: GlobalMean) -> None:
    """Raises a ValueError for an unknown kind of global mean."""
    if kind not in get_args(GlobalMean):
        raise ValueError(f"global_mean must be one of {', '.join(get_args(GlobalMean))}; got {kind!r}.")


def has_float64(device: torch.device) -> bool:
    """Returns whether the device supports float64. MPS does not, so metrics of tensors on MPS are computed on the CPU."""
    return device.type != "mps"


def class_statistics(features: Tensor, labels: Tensor, num_classes: int) -> ClassStatistics:
    """Returns the statistics of features, (num_samples, feature_dim), with labels, (num_samples,).

    Outer products of deviations are computed in the dtype of the features, at least float32, and summed in float64. For float32
    features, the scatter is accurate to 1e-6 of its largest direction, however small the scatter is compared with the means. If
    directions with hardly any scatter remain uncertain, the computation is repeated in float64.

    Raises:
        ValueError: if fewer than two classes have samples.
    """
    features = features.detach() if has_float64(features.device) else features.detach().cpu()
    labels = labels.to(features.device, torch.int64)
    counts = torch.bincount(labels, minlength=num_classes)
    _check_enough_classes(counts)
    samples = torch.split(torch.argsort(labels, stable=True), counts[counts > 0].tolist())
    dtype = product_dtype(features.dtype)
    with torch.autocast(features.device.type, enabled=False):
        found = _statistics(features, counts, samples, dtype)
        if dtype != torch.float64 and _is_nearly_singular(found.scatter, UNCERTAIN_SCATTER):
            return _statistics(features, counts, samples, torch.float64)
        return found


def _statistics(features: Tensor, counts: Tensor, samples: Sequence[Tensor], dtype: torch.dtype) -> ClassStatistics:
    """Returns the statistics with products in `dtype`; `samples` holds the row indices of each class that has samples."""
    feature_dim = features.shape[1]
    # One buffer for all groups, because reused memory is several times faster than new memory.
    buffer = features.new_empty(min(len(features), chunk_rows(feature_dim)), feature_dim, dtype=dtype)
    scatter = torch.zeros(feature_dim, feature_dim, dtype=torch.float64, device=features.device)
    # Each group is one class of at least feature_dim samples, or several smaller classes that fill a chunk.
    groups: list[list[Tensor]] = []
    room = 0
    for indices in samples:
        is_large = len(indices) >= feature_dim
        if is_large or len(indices) > room:
            groups.append([])
            room = chunk_rows(feature_dim)
        groups[-1].append(indices)
        room = 0 if is_large else room - len(indices)
    found = []
    for group in groups:
        if len(group[0]) >= feature_dim:
            found.append(_add_large_class(scatter, features, group[0], buffer))
        else:
            found.append(_add_small_classes(scatter, features, group, buffer))
    means, class_scatter, ranks = (torch.cat(parts) for parts in zip(*found, strict=True))
    return ClassStatistics(counts, means, symmetrized(scatter), class_scatter, ranks)


def chunk_rows(feature_dim: int) -> int:
    """Returns the number of samples to process at a time: enough that outer products cost more than adding them up."""
    return max(feature_dim, CHUNK_ENTRIES // feature_dim)


_OfClasses = tuple[Tensor, Tensor, Tensor]
"""Means (num_classes, feature_dim), sums of |h - mu_c|^2 and numerical ranks (num_classes,) of some classes, float64."""


def _add_small_classes(scatter: Tensor, features: Tensor, samples: Sequence[Tensor], buffer: Tensor) -> _OfClasses:
    """Returns the statistics of small classes, and adds the outer products of their deviations to `scatter` (upper blocks only)."""
    sizes = [len(indices) for indices in samples]
    classes = torch.arange(len(sizes), device=features.device).repeat_interleave(torch.tensor(sizes, device=features.device))
    deviations, means = _centered_rows(features, torch.cat(tuple(samples)), classes, buffer)
    add_outer_products(scatter, deviations)
    squares, ranks = [], []
    for own, mean, indices in zip(torch.split(deviations, sizes), means, samples, strict=True):
        gram = (own @ own.T).to(torch.float64)
        squares.append(gram.diagonal().sum())
        # The Gram matrix of the samples themselves, with |mu|^2 in float64, because deviations can be tiny in comparison.
        along = (own @ mean.to(own.dtype)).to(torch.float64)
        gram += along[:, None] + along + mean @ mean
        ranks.append(_numerical_rank(gram, torch.finfo(buffer.dtype).eps * squares[-1], features, indices, len(buffer)))
    return means, torch.stack(squares), torch.stack(ranks)


def _add_large_class(scatter: Tensor, features: Tensor, samples: Tensor, buffer: Tensor) -> _OfClasses:
    """Returns the statistics of a class of at least feature_dim samples, and adds its outer products to `scatter` (upper blocks).

    The scatter of such a class, (feature_dim, feature_dim), is no larger than the Gram matrix of its samples.
    """
    own_scatter, part_means = torch.zeros_like(scatter), []
    parts = torch.split(samples, len(buffer))
    for part in parts:
        deviations, mean = _centered_rows(features, part, torch.zeros_like(part), buffer)
        add_outer_products(own_scatter, deviations)
        part_means.append(mean[0])
    # Adds the scatter between parts, n_p (mu_p - mu)(mu_p - mu)'. All terms are positive semidefinite, so none cancel.
    means, sizes = torch.stack(part_means), scatter.new_tensor([len(part) for part in parts])
    mean = sizes @ means / len(samples)
    add_outer_products(own_scatter, (means - mean) * sizes.sqrt()[:, None])
    scatter += own_scatter
    squares = own_scatter.diagonal().sum()
    gram = own_scatter.addr_(mean, mean, alpha=len(samples))
    rank = _numerical_rank(gram, torch.finfo(buffer.dtype).eps * squares, features, samples, len(buffer))
    return mean[None], squares[None], rank[None]


def _centered_rows(features: Tensor, indices: Tensor, classes: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the samples at `indices` minus their class means, and these means in float64.

    The deviations are stored in the buffer, or in a new float64 tensor if float32 cannot hold their products. `classes` are the
    classes of the rows, ascending from 0 without gaps.
    """
    num_classes, rows = int(classes[-1]) + 1, buffer[: len(indices)]
    if features.dtype == rows.dtype:
        torch.index_select(features, 0, indices, out=rows)
    else:
        rows.copy_(features.index_select(0, indices))
    means = _center_in_place(rows, classes, num_classes)
    if rows.dtype != torch.float64 and not safe_in_float32(rows):
        rows = features.index_select(0, indices).to(torch.float64)
        means = _center_in_place(rows, classes, num_classes)
    return rows, means


def _center_in_place(rows: Tensor, classes: Tensor, num_classes: int) -> Tensor:
    """Returns the class means of the rows, in float64, and subtracts them from the rows in place."""
    counts = torch.bincount(classes, minlength=num_classes)[:, None]
    means = rows.new_zeros(num_classes, rows.shape[1], dtype=torch.float64)
    # The rounding error of a mean can exceed the deviations of a collapsed class. The mean of the first deviations corrects it.
    for _ in range(2):
        part = rows.new_zeros(num_classes, rows.shape[1]).index_add_(0, classes, rows) / counts
        rows -= part if num_classes == 1 else part.index_select(0, classes)
        means += part
    return means


def _numerical_rank(gram: Tensor, error: Tensor, features: Tensor, samples: Tensor, rows_at_once: int) -> Tensor:
    """Returns |H_c|_*^2 / |H_c|_F^2, a scalar: the number of directions that the features of a class span, as in the paper's code.

    The features are not centered: a class that has collapsed to its mean has rank 1, a class of zeros rank 0. Rounding errors turn
    singular values of 0 into values up to sqrt(error). If enough such values occur to matter, the Gram matrix is recomputed in
    float64.

    Args:
        gram: the smaller of H_c' H_c and H_c H_c'; only its upper triangle is read.
        error: the rounding error of the entries of `gram`.
        features: (num_samples, feature_dim).
        samples: indices of the class in `features`.
        rows_at_once: number of rows to process at a time.
    """
    values = torch.linalg.eigvalsh(gram, UPLO="U").clamp(min=0)
    if bool((values < error).sum() * error.sqrt() > UNCERTAIN_RANK * values.sqrt().sum()):
        feature_dim = features.shape[1]
        if len(samples) < feature_dim:
            rows = features[samples].to(torch.float64)
            gram = rows @ rows.T
        else:
            gram = gram.new_zeros(feature_dim, feature_dim)
            for part in torch.split(samples, rows_at_once):
                add_outer_products(gram, features[part].to(torch.float64))
        values = torch.linalg.eigvalsh(gram, UPLO="U").clamp(min=0)
    total = values.sum()
    return torch.where(total > 0, values.sqrt().sum().square() / torch.where(total > 0, total, 1.0), 0.0)


class Moments(NamedTuple):
    """The class statistics of some of the samples, with the mean of each class stored relative to a reference.

    At collapse, the samples of a class nearly coincide. Their differences from a nearby reference are then exact, and the rounding
    error of the mean of these differences is far smaller than that of the mean of the samples.
    """

    counts: Tensor  # (num_classes,), int64
    references: Tensor  # (num_classes, feature_dim), float64; arbitrary for classes without samples
    offsets: Tensor  # class mean minus reference, (num_classes, feature_dim), float64; 0 for classes without samples
    scatter: Tensor  # sum (h - mu_c)(h - mu_c)', (feature_dim, feature_dim), float64, upper block triangle only
    class_scatter: Tensor  # sum |h - mu_c|^2 of each class, (num_classes,), float64

    def statistics(self) -> ClassStatistics:
        """Returns the class statistics. Raises a ValueError if fewer than two classes have samples."""
        _check_enough_classes(self.counts)
        present = self.counts.nonzero().flatten()
        means = (self.references + self.offsets)[present]
        return ClassStatistics(self.counts.clone(), means, symmetrized(self.scatter), self.class_scatter[present])


def no_moments(feature_dim: int, num_classes: int, device: torch.device | None = None) -> Moments:
    """Returns the moments of zero samples."""
    rows = torch.zeros(num_classes, feature_dim, dtype=torch.float64, device=device)
    counts = torch.zeros(num_classes, dtype=torch.int64, device=device)
    return Moments(counts, rows, rows.clone(), rows.new_zeros(feature_dim, feature_dim), rows.new_zeros(num_classes))


def add_batch(total: Moments, features: Tensor, labels: Tensor) -> None:
    """Adds a batch to the moments in place. The reference of a class is its first sample."""
    first = first_samples(features, labels, len(total.counts))
    merge(total, batch_moments(features, labels, torch.where((total.counts > 0)[:, None], total.references, first)))


def batch_moments(features: Tensor, labels: Tensor, references: Tensor) -> Moments:
    """Returns the moments of a batch.

    Features are (num_samples, feature_dim), labels (num_samples,), and references as in `Moments`.
    """
    counts = torch.bincount(labels, minlength=len(references))
    deviations = features.to(references) - references[labels]
    offsets = torch.zeros_like(references).index_add_(0, labels, deviations) / counts.clamp(min=1)[:, None]
    deviations -= offsets[labels]
    scatter = references.new_zeros(references.shape[1], references.shape[1])
    add_outer_products(scatter, deviations)
    class_scatter = references.new_zeros(len(references)).index_add_(0, labels, deviations.square().sum(dim=1))
    return Moments(counts, references, offsets, scatter, class_scatter)


def first_samples(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Returns the first sample of each class in a batch, (num_classes, feature_dim), float64; zeros for absent classes."""
    positions = torch.arange(len(labels), device=labels.device)
    first = torch.full((num_classes,), len(labels), device=labels.device).scatter_reduce_(0, labels, positions, "amin")
    found = (first < len(labels)).nonzero().flatten()
    samples = torch.zeros(num_classes, features.shape[1], dtype=torch.float64, device=features.device)
    samples[found] = features[first[found]].to(torch.float64)
    return samples


def merge(left: Moments, right: Moments) -> Moments:
    """Merges the moments of `right` into `left`, in place, and returns `left`.

    For a class with n and m samples whose means differ by delta, the scatter about the common mean is the sum of both scatters plus
    n m/(n+m) delta delta'. All terms are positive semidefinite, so none cancel.
    """
    classes = right.counts.nonzero().flatten()
    here, there = left.counts[classes].to(torch.float64), right.counts[classes].to(torch.float64)
    unknown = classes[here == 0]
    left.references[unknown] = right.references[unknown]
    shift = right.references[classes] - left.references[classes]
    differences = shift + right.offsets[classes] - left.offsets[classes]
    weighted = differences * (here * there / (here + there)).sqrt()[:, None]
    left.scatter.add_(right.scatter)
    add_outer_products(left.scatter, weighted)
    left.class_scatter.add_(right.class_scatter).index_add_(0, classes, weighted.square().sum(dim=1))
    left.offsets.index_add_(0, classes, differences * (there / (here + there))[:, None])
    left.counts.add_(right.counts)
    return left


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype for products of features: float32 for float32 and narrower dtypes, otherwise float64.

    The result is always float64 if `torch.set_float32_matmul_precision` allows TF32 or bfloat16, which have only two or three
    digits.
    """
    return torch.float32 if dtype != torch.float64 and float32_is_float32() else torch.float64


def safe_in_float32(values: Tensor, offset: float = 0.0) -> bool:
    """Returns whether sums of products of these values, plus an offset of this size, stay within the range of float32."""
    return 1e-12 < float(torch.linalg.vector_norm(values)) < 1e12 and offset < 1e12


def add_outer_products(scatter: Tensor, rows: Tensor) -> None:
    """Adds rows.T @ rows to the upper block triangle of `scatter` in place, with products in the dtype of the rows.

    Blocks on and above the diagonal take 5/8 of the multiplications; `symmetrized` fills in the rest at the end.
    """
    width = -(-len(scatter) // COLUMN_BLOCKS)
    for start in range(0, len(scatter), width):
        block, left, right = scatter[start : start + width, start:], rows[:, start : start + width].T, rows[:, start:]
        if rows.dtype == scatter.dtype:
            block.addmm_(left, right)
        else:
            block.add_(left @ right)


def symmetrized(scatter: Tensor) -> Tensor:
    """Returns the symmetric matrix with this upper triangle, (feature_dim, feature_dim)."""
    return scatter.triu() + scatter.triu(1).T


def _is_nearly_singular(scatter: Tensor, tolerance: float) -> bool:
    """Returns whether the scatter along some direction is below `tolerance` times what uncorrelated dimensions would give."""
    units = torch.where(scatter.diagonal() > 0, scatter.diagonal().rsqrt(), 0)
    correlations = scatter * units * units[:, None]
    correlations.diagonal().fill_(1 - tolerance)
    return bool(torch.linalg.cholesky_ex(correlations).info)


def _check_enough_classes(counts: Tensor) -> None:
    present = int((counts > 0).sum())
    if present < 2:
        raise ValueError(
            f"at least two classes must have samples, because collapse compares classes; got samples of {present} of {len(counts)} "
            "classes. Pass more data."
        )
