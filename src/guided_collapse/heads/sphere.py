"""Features on a sphere, f = scale h/|h|, and their products with a weight, with short backward passes.

Features without a direction, of a norm up to SMALLEST_NORM, are zero on the sphere and get no gradient.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.operations import ClosedGradient, is_recorded

SMALLEST_NORM = 1e-12


def sphere_factors(features: Tensor, scale: float) -> Tensor:
    """What features, (..., feature_dim), are multiplied by to be on the sphere: scale/|h|, (..., 1)."""
    # Over infinity, features without a direction become zero.
    return scale / functional.threshold(torch.linalg.vector_norm(features, dim=-1, keepdim=True), SMALLEST_NORM, math.inf)


def _differentiable(features: Tensor, scale: float, factors: Tensor | None) -> Tensor:
    """Factors that are constant only where nothing is recorded."""
    return sphere_factors(features, scale) if factors is None or is_recorded(features) else factors


def _points(
    features: Tensor, *, scale: float, factors: Tensor | None = None, center: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    factors = _differentiable(features, scale, factors)
    return features * factors if center is None else torch.addcmul(-center, features, factors), factors


def _points_backward(grad: Tensor, needed: list[Tensor], features: Tensor, *, scale: float, **_: Tensor | None) -> tuple[Tensor]:
    (factors,) = needed
    products = grad * features
    along = products.sum(dim=-1, keepdim=True) * (factors / scale).square()
    # Large tensors are costly to allocate: this one is used twice.
    return (torch.addcmul(grad, features, along, value=-1, out=products).mul_(factors),)


on_sphere = ClosedGradient(_points, _points_backward)
"""f = scale h/|h| of features h, (..., feature_dim), minus a constant `center`; `factors` as by `sphere_factors`, if known."""


def _logits(features: Tensor, weight: Tensor, *, scale: float, factors: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    factors = _differentiable(features, scale, factors)
    products = features @ weight.T
    return products * factors, products, factors


def _logits_backward(
    grad: Tensor, needed: list[Tensor], features: Tensor, weight: Tensor, *, scale: float, **_: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    products, factors = needed
    scaled = grad * factors
    along = (scaled * products).sum(dim=-1, keepdim=True) * (factors / scale).square()
    grad_weight = scaled.T @ features if weight.requires_grad else None
    return (features * -along).addmm_(scaled, weight), grad_weight


sphere_logits = ClosedGradient(_logits, _logits_backward)
"""f W', (num_samples, num_classes), of features h, (num_samples, feature_dim), without a copy of them on the sphere."""
