"""Classifier heads at the simplex ETF nearest to a network's own class means, and metrics of neural collapse.

Public names are imported on first access: using a head does not import the metrics, and building a report does not import torch.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.geometry import NearestETF, nearest_etf, simplex_etf
    from guided_collapse.heads import (
        AnchoredHead,
        Classifier,
        CosineHead,
        FixedETFHead,
        Head,
        NearestETFHead,
        NearestETFLoss,
        RunningClassMeans,
        compatibility_loss,
        replace_classifier,
    )
    from guided_collapse.metrics import (
        CollapseMetrics,
        CollapseResult,
        CompatibilityResult,
        RetrievalResult,
        SecondPass,
        collapse_of,
        compatibility,
        cross_entropy_lower_bound,
        embeddings_of,
        measure_collapse,
        retrieval,
    )
    from guided_collapse.optim import AGD
    from guided_collapse.sampling import StratifiedBatchSampler

__version__ = version("guided-collapse")

__all__ = [
    "AGD",
    "AnchoredHead",
    "Classifier",
    "CollapseMetrics",
    "CollapseResult",
    "CompatibilityResult",
    "CosineHead",
    "FixedETFHead",
    "Head",
    "NearestETF",
    "NearestETFHead",
    "NearestETFLoss",
    "RetrievalResult",
    "RunningClassMeans",
    "SecondPass",
    "StratifiedBatchSampler",
    "collapse_of",
    "compatibility",
    "compatibility_loss",
    "cross_entropy_lower_bound",
    "embeddings_of",
    "measure_collapse",
    "nearest_etf",
    "replace_classifier",
    "retrieval",
    "simplex_etf",
]

_GEOMETRY = ("NearestETF", "nearest_etf", "simplex_etf")
_METRICS = (
    "CollapseMetrics",
    "CollapseResult",
    "CompatibilityResult",
    "RetrievalResult",
    "SecondPass",
    "collapse_of",
    "compatibility",
    "cross_entropy_lower_bound",
    "embeddings_of",
    "measure_collapse",
    "retrieval",
)
_HOMES = {
    **dict.fromkeys(__all__, "heads"),
    **dict.fromkeys(_GEOMETRY, "geometry"),
    **dict.fromkeys(_METRICS, "metrics"),
    "AGD": "optim",
    "StratifiedBatchSampler": "sampling",
}
__getattr__, __dir__ = on_demand(__name__, _HOMES)
