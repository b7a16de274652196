"""NC1 to NC4, one number at a time; `measure_collapse` gives all of them, and more, for the price of one."""

import torch
from torch import Tensor

from guided_collapse.geometry.simplex import check_num_classes
from guided_collapse.metrics.checks import check_classifier, check_not_vanishing
from guided_collapse.metrics.collapse import measure_collapse
from guided_collapse.metrics.formulas.frames import simplex_deviation


def nc1(features: Tensor, labels: Tensor) -> float:
    """Within-class variability: tr(S_W pinv(S_B)) / C, 0 at collapse.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse.metrics import nc1
        >>> nc1(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1]))
        0.0
    """
    return measure_collapse(features, labels).nc1


@torch.no_grad()
def nc2(weight: Tensor) -> float:
    """How far the weights are from a simplex ETF: | WW'/|WW'|_F - P/sqrt(C-1) |_F with P = I - 11'/C, 0 at collapse.

    Args:
        weight: W, (num_classes, feature_dim), as in nn.Linear.

    Raises:
        ValueError: for a weight that is not a finite floating-point matrix of at least two rows.

    Example:
        >>> import torch
        >>> from guided_collapse import simplex_etf
        >>> from guided_collapse.metrics import nc2
        >>> round(nc2(simplex_etf(4)), 6), round(nc2(torch.eye(4)), 6)
        (0.0, 0.517638)
    """
    check_classifier(weight, None, len(weight), weight.shape[-1])
    check_num_classes(len(weight))
    check_not_vanishing(weight, "weight")
    exact = weight.to(torch.float64)
    return simplex_deviation(exact @ exact.T)


def nc3(features: Tensor, labels: Tensor, weight: Tensor) -> float:
    """How far weights and class means are from being dual: | W Hbar/|W Hbar|_F - P/sqrt(C-1) |_F, 0 at collapse.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.
        weight: W, (num_classes, feature_dim), as in nn.Linear.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse import simplex_etf
        >>> from guided_collapse.metrics import nc3
        >>> labels = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> round(nc3(simplex_etf(3)[labels], labels, simplex_etf(3)), 6)
        0.0
    """
    return _with_weight(measure_collapse(features, labels, weight).nc3)


def nc4(features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None = None) -> float:
    """The share of samples whose predicted class is not that of the nearest class mean, 0 at collapse.

    Args:
        features: (num_samples, feature_dim).
        labels: (num_samples,), class indices.
        weight: W, (num_classes, feature_dim), as in nn.Linear.
        bias: b, (num_classes,); None for a classifier without one.

    Raises:
        ValueError: for input that does not fit together, is not finite, or has samples of fewer than two classes.

    Example:
        >>> import torch
        >>> from guided_collapse.metrics import nc4
        >>> features, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1, 1])
        >>> nc4(features, labels, torch.eye(2)), nc4(features, labels, torch.eye(2), torch.tensor([0.0, 2.0]))
        (0.0, 0.25)
    """
    return _with_weight(measure_collapse(features, labels, weight, bias).nc4)


def _with_weight(value: float | None) -> float:
    if value is None:
        raise ValueError("weight must be (num_classes, feature_dim); got none. Pass the classifier's weight, as in nn.Linear.")
    return value
