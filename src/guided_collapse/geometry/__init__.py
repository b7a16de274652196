"""Simplex equiangular tight frames, and tight frames for sizes without a simplex ETF: fixed, or nearest to given class means."""

from guided_collapse.geometry.bounds import largest_cosine_bound, tight_frame_cross_entropy_bound, welch_bound
from guided_collapse.geometry.nearest import NearestETF, NearestFrame, nearest_etf, tightness_defect
from guided_collapse.geometry.simplex import frame_basis, simplex_etf
from guided_collapse.geometry.tight import nearest_frame, tight_frame

__all__ = [
    "NearestETF",
    "NearestFrame",
    "frame_basis",
    "largest_cosine_bound",
    "nearest_etf",
    "nearest_frame",
    "simplex_etf",
    "tight_frame",
    "tight_frame_cross_entropy_bound",
    "tightness_defect",
    "welch_bound",
]
