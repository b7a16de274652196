"""Features on a sphere, f = scale h/|h|, with a short backward pass.

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


def differentiable_factors(features: Tensor, scale: float, factors: Tensor | None = None) -> Tensor:
    """The factors, constant if they are known and nothing is recorded."""
    return sphere_factors(features, scale) if factors is None or is_recorded(features) else factors


def from_sphere(grad: Tensor, features: Tensor, factors: Tensor, *, scale: float) -> Tensor:
    """The gradient with respect to features h, given that with respect to f = factors h."""
    products = grad * features
    along = products.sum(dim=-1, keepdim=True).mul_(factors).mul_(factors)
    # Large tensors are costly to allocate: this one is used twice.
    return torch.addcmul(grad, features, along, value=-(scale**-2), out=products).mul_(factors)


def _points(features: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    factors = differentiable_factors(features, scale)
    return features * factors, factors


on_sphere = ClosedGradient(_points, lambda grad, needed, features, **options: (from_sphere(grad, features, *needed, **options),))
"""f = scale h/|h| of features h, (..., feature_dim)."""
