"""Which of several linear scores of a point is the largest: computed in float32, decided as in float64."""

from typing import NamedTuple

import torch
from torch import Tensor

from guided_collapse.metrics.formulas.products import SAFE_IN_FLOAT32, safe_in_float32


class Points(NamedTuple):
    """Samples relative to a center."""

    features: Tensor
    """The samples themselves, (num_samples, feature_dim)."""
    center: Tensor
    """(feature_dim,), float64."""
    values: Tensor
    """features - center, (num_samples, feature_dim), in the precision that products are to be taken in."""
    norms: Tensor
    """The norms of the values, (num_samples,), float64."""

    def exact(self, which: Tensor) -> Tensor:
        """The values of some samples in float64."""
        return self.features[which].to(self.center) - self.center


def centered_points(features: Tensor, center: Tensor, dtype: torch.dtype) -> Points:
    """Samples relative to a center, in float32 or float64; in float64 too if their norms are out of reach of float32.

    Args:
        features: (num_samples, feature_dim).
        center: (feature_dim,), float64.
        dtype: of the values.
    """
    leading = center.to(dtype)
    values = features.to(dtype) - leading
    # In float32 the center goes in two parts, so that points close to it have as many correct digits as those far away.
    values -= (center - leading).to(dtype)
    norms = torch.linalg.vector_norm(values, dim=1).to(torch.float64)
    if dtype != torch.float64 and not safe_in_float32(norms):
        return centered_points(features, center, torch.float64)
    return Points(features, center, values, norms)


class LinearScores:
    """<r_j, p> + o_j for rows r_j, offsets o_j and any points p.

    Args:
        rows: (num_rows, feature_dim), float64.
        offsets: (num_rows,), float64.
    """

    def __init__(self, rows: Tensor, offsets: Tensor) -> None:
        self.rows, self.offsets = rows, offsets
        self.norms = torch.linalg.vector_norm(rows, dim=1)
        self.largest_norm, self.largest_offset = float(self.norms.max()), float(offsets.abs().max())
        safe = safe_in_float32(self.norms) and self.largest_offset < SAFE_IN_FLOAT32[1]
        self.narrow_rows = rows.to(torch.float32) if safe else rows

    def products(self, points: Points) -> Tensor:
        """<r_j, p>, (num_samples, num_rows), in the precision of the points unless these rows need float64."""
        rows = self.narrow_rows if points.values.dtype == torch.float32 else self.rows
        return points.values.to(rows.dtype) @ rows.T

    def largest(self, products: Tensor, points: Points) -> Tensor:
        """argmax_j <r_j, p> + o_j as float64 finds it, (num_samples,).

        Args:
            products: <r_j, p>, (num_samples, num_rows).
            points: the points they are of.
        """
        scores = products + self.offsets.to(products.dtype)
        best, winners = scores.max(dim=1)
        if scores.dtype == torch.float64:
            return winners
        second = scores.scatter_(1, winners[:, None], -torch.inf).amax(dim=1)
        # A bound on the rounding error of the difference of two scores, whatever the order of summation.
        sizes = points.norms * self.largest_norm + self.largest_offset
        doubtful = (best - second <= (self.rows.shape[1] + 8) * torch.finfo(scores.dtype).eps * sizes).nonzero().flatten()
        if len(doubtful) > 0:
            winners[doubtful] = (points.exact(doubtful) @ self.rows.T + self.offsets).argmax(dim=1)
        return winners
