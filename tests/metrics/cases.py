"""Features, labels and classifiers of every kind, streamed, and the comparison of two results."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from guided_collapse import CollapseMetrics, CollapseResult

SIZES = {
    "balanced": [12] * 6,
    "imbalanced": [300, 100, 40, 10, 3, 3],
    "missing": [20, 0, 15, 15, 0, 9, 11],
    "narrow": [30] * 9,
    "wide": [5] * 4,
}
FEATURE_DIM = {"narrow": 5, "wide": 40}


class Case(NamedTuple):
    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor

    @property
    def num_classes(self) -> int:
        return len(self.weight)


def case(name: str, *, noise: float = 0.7, seed: int = 0, dtype: torch.dtype = torch.float64) -> Case:
    generator = torch.Generator().manual_seed(seed)
    sizes, width = SIZES[name], FEATURE_DIM.get(name, 10)
    means = torch.randn(len(sizes), width, generator=generator, dtype=torch.float64)
    means /= means.norm(dim=1, keepdim=True)
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    scatter = noise * torch.randn(len(labels), width, generator=generator, dtype=torch.float64)
    # Features far from centered, as after a ReLU.
    features = 0.5 + means[labels] + scatter * torch.linspace(0.3, 1.5, width, dtype=torch.float64)
    weight = means + 0.3 * torch.randn(len(sizes), width, generator=generator, dtype=torch.float64)
    bias = 0.2 * torch.randn(len(sizes), generator=generator, dtype=torch.float64)
    return Case(features.to(dtype), labels, weight.to(dtype), bias.to(dtype))


def agree(
    of_stream: CollapseResult,
    of_arrays: CollapseResult,
    *,
    left_out: Sequence[str] = (),
    relative: float = 1e-9,
    absolute: float = 1e-12,
) -> None:
    """Asserts that all metrics of two results agree, except those left out on purpose."""
    streamed, pure = of_stream.to_dict(), of_arrays.to_dict()
    known = {name for name, value in streamed.items() if value is not None}
    assert {name for name, value in pure.items() if value is not None} - known == set(left_out)
    for name in known - {"left_out", "notes", "global_mean", "counts"}:
        # Without scatter in directions where the means differ, the index is 0 up to rounding.
        floor = absolute if name in ("cosine_margins", "vci") else 0
        assert streamed[name] == pytest.approx(pure[name], rel=relative, abs=floor), name
    for name in ("counts", "global_mean"):
        assert streamed[name] == pure[name]


def filled(data: Case, sizes: Sequence[int], **options: Any) -> CollapseMetrics:
    metrics = CollapseMetrics(data.features.shape[1], data.num_classes, **options)
    feed(metrics, data, sizes)
    return metrics


def feed(metrics: CollapseMetrics, data: Case, sizes: Sequence[int]) -> None:
    start = 0
    while start < len(data.labels):
        for size in sizes:
            metrics.update(data.features[start : start + size], data.labels[start : start + size])
            start += size


RANKS = ("numerical_rank", "numerical_ranks")
SECOND_PASS = ("nc4", "accuracy", "nearest_center_accuracy", "mean_cosine_margin", "cosine_margins")
