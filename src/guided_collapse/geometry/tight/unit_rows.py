"""Unit rows for a tight frame."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from guided_collapse.geometry.tight.harmonic import harmonic_columns
from guided_collapse.geometry.tight.rounds import alternate, polar_columns

# How far a round goes towards the target, whose rows have norm 1 in the mean as those of the frame have.
PULL = 0.3


def can_be_centred(num_classes: int, feature_dim: int) -> bool:
    """Whether the rounds keep the rows' sum at zero, for num_classes > feature_dim + 1.

    They do not in one dimension, nor for num_classes = feature_dim + 2: unit rows are then given by signs (their own, or those of
    the one dimension that the frame and its mean leave over), and an odd number of signs does not sum to zero. No frame
    with unit rows is tight and centred there if num_classes is odd, and steps between signs do not lead to one if it is even.
    """
    return feature_dim > 1 and num_classes > feature_dim + 2


def with_unit_rows(columns: Tensor, target: Tensor, fallback: Tensor, *, rounds: int) -> Tensor:
    """A frame with unit rows, nearly tight, near to the target: rounds that are pulled to it, then twice as many that are not.

    The first rounds go from V towards a frame W that has a large <W, T> for its unit rows. The others leave only what is not tight
    to be removed. They work on the smaller of two sides: columns V, or orthonormal columns E that complete them (and 1, for
    centred frames) to a basis of all of R^C. Rows of V have equal norms exactly when rows of E have, and
    the share of the defect that a round leaves is about the number of columns over C: at most a half on the smaller side, where it
    would be near to 1 for num_classes little above feature_dim.

    Args:
        columns: V, (num_classes, feature_dim), orthonormal columns, centred; num_classes > feature_dim + 1.
        target: T, (num_classes, feature_dim), of any scale but 0.
        fallback: (num_classes, feature_dim), rows for those of V that are zero.
        rounds: how many with the pull; twice as many without follow.

    Returns:
        W, (num_classes, feature_dim). The last operation is the division of each row by its norm.
    """
    num_classes, feature_dim = columns.shape
    centred = can_be_centred(num_classes, feature_dim)
    scaled_target = target * (math.sqrt(num_classes) / torch.linalg.vector_norm(target))
    pulls, no_pulls = rounds * [PULL], 2 * rounds * [0.0]
    num_spare = num_classes - feature_dim - centred
    if num_spare >= feature_dim:
        return _unit(alternate(columns, scaled_target, fallback, pulls=pulls + no_pulls, centred=centred))
    columns = alternate(columns, scaled_target, fallback, pulls=pulls, centred=centred)
    spare = _spare_columns(columns, centred=centred)
    canonical = harmonic_columns(num_classes, num_spare, dtype=columns.dtype).to(columns.device)
    evened = alternate(spare, spare, canonical, pulls=no_pulls, centred=centred)
    return _unit(polar_columns(columns - evened @ (evened.T @ columns)))


def _unit(columns: Tensor) -> Tensor:
    return functional.normalize(columns, dim=1, eps=torch.finfo(columns.dtype).tiny)


def _spare_columns(columns: Tensor, *, centred: bool) -> Tensor:
    """Orthonormal columns E that complete V, and 1 if V is centred, to a basis of R^C.

    Which basis of its span E is does not matter to the rounds. Therefore a constant one serves, and the derivative is that of its
    projection (I - VV') E.
    """
    num_classes, feature_dim = columns.shape
    known = columns.detach()
    if centred:
        known = torch.cat([known, known.new_full((num_classes, 1), num_classes**-0.5)], dim=1)
    spare = torch.linalg.qr(known, mode="complete").Q[:, feature_dim + centred :]
    return spare - columns @ (columns.T @ spare)
