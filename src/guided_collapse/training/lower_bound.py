"""The loss that a head cannot go below."""

from guided_collapse.geometry.tight.bounds import tight_frame_cross_entropy_bound
from guided_collapse.geometry.tight.unit_rows import can_be_centred
from guided_collapse.heads.frame_head import FrameHead
from guided_collapse.heads.head import Head
from guided_collapse.metrics.formulas.frames import cross_entropy_lower_bound


def loss_lower_bound(head: Head) -> float | None:
    """What the mean cross-entropy is at least, for classes of equal size; None for features whose norm is free.

    With more classes than feature_dim + 1 the bound of tight frames is for heads that are one. What learned rows can reach is not
    known; for them it is the bound of a simplex ETF, which holds for all unit rows and is not reached.
    """
    if head.temperature is None:
        return None
    if isinstance(head, FrameHead) and can_be_centred(head.num_classes, head.feature_dim):
        return tight_frame_cross_entropy_bound(head.num_classes, head.feature_dim, head.temperature)
    return cross_entropy_lower_bound(head.num_classes, head.temperature)
