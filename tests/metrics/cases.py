"""Features, labels and classifiers of every kind that the metrics have to cope with."""

from typing import NamedTuple

import torch
from torch import Tensor

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
    # Features that are far from centered, as behind a ReLU.
    features = 0.5 + means[labels] + scatter * torch.linspace(0.3, 1.5, width, dtype=torch.float64)
    weight = means + 0.3 * torch.randn(len(sizes), width, generator=generator, dtype=torch.float64)
    bias = 0.2 * torch.randn(len(sizes), generator=generator, dtype=torch.float64)
    return Case(features.to(dtype), labels, weight.to(dtype), bias.to(dtype))
