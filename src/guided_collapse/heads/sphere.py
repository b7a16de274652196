"""Projection onto a sphere, f = scale h/|h|, with a cheap backward pass.

Features with a norm of at most SMALLEST_NORM have no direction: they become zero and get no gradient.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.operations import ClosedGradient, is_recorded

SMALLEST_NORM = 1e-12


def sphere_factors(features: Tensor, scale: float) -> Tensor:
    """Returns scale/|h| of features h, (..., feature_dim): the factors that project them onto the sphere, (..., 1)."""
    # Division by infinity makes the factor of features without a direction zero.
    return scale / functional.threshold(torch.linalg.vector_norm(features, dim=-1, keepdim=True), SMALLEST_NORM, math.inf)


def differentiable_factors(features: Tensor, scale: float, factors: Tensor | None = None) -> Tensor:
    """Returns `sphere_factors(features, scale)`, or the given factors if the result needs no gradient.

    Given factors are constants, so the factors are computed again if autograd records operations on the features.
    """
    return sphere_factors(features, scale) if factors is None or is_recorded(features) else factors


def from_sphere(grad: Tensor, features: Tensor, factors: Tensor, *, scale: float) -> Tensor:
    """Returns the gradient with respect to h, given the gradient with respect to f = factors h."""
    products = grad * features
    along = products.sum(dim=-1, keepdim=True).mul_(factors).mul_(factors)
    # Reuses a buffer, because large tensors are expensive to allocate.
    return torch.addcmul(grad, features, along, value=-(scale**-2), out=products).mul_(factors)


def _points(features: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    factors = differentiable_factors(features, scale)
    return features * factors, factors


on_sphere = ClosedGradient(_points, lambda grad, needed, features, **options: (from_sphere(grad, features, *needed, **options),))
"""Returns f = scale h/|h| for features h, (..., feature_dim)."""
