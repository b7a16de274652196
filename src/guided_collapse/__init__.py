"""Classifier heads that sit at the simplex ETF nearest to a network's own class means, and a toolkit that measures collapse.

Names are imported when first asked for: who wants a head need not wait for what measures, and a report needs no torch.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.geometry.nearest import NearestETF, nearest_etf
    from guided_collapse.geometry.simplex import simplex_etf
    from guided_collapse.heads.class_means import RunningClassMeans
    from guided_collapse.heads.classifier import Classifier
    from guided_collapse.heads.cosine import CosineHead
    from guided_collapse.heads.fixed import FixedETFHead
    from guided_collapse.heads.head import Head
    from guided_collapse.heads.loss import NearestETFLoss
    from guided_collapse.heads.nearest import NearestETFHead
    from guided_collapse.heads.replace import replace_classifier
    from guided_collapse.metrics.formulas import cross_entropy_lower_bound
    from guided_collapse.metrics.measure import collapse_of, measure_collapse
    from guided_collapse.metrics.result import CollapseResult
    from guided_collapse.metrics.streaming import CollapseMetrics, SecondPass
    from guided_collapse.optim.agd import AGD
    from guided_collapse.sampling import StratifiedBatchSampler

__version__ = version("guided-collapse")

__all__ = [
    "AGD",
    "Classifier",
    "CollapseMetrics",
    "CollapseResult",
    "CosineHead",
    "FixedETFHead",
    "Head",
    "NearestETF",
    "NearestETFHead",
    "NearestETFLoss",
    "RunningClassMeans",
    "SecondPass",
    "StratifiedBatchSampler",
    "collapse_of",
    "cross_entropy_lower_bound",
    "measure_collapse",
    "nearest_etf",
    "replace_classifier",
    "simplex_etf",
]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "AGD": "optim.agd",
        "Classifier": "heads.classifier",
        "CollapseMetrics": "metrics.streaming",
        "CollapseResult": "metrics.result",
        "FixedETFHead": "heads.fixed",
        "Head": "heads.head",
        "CosineHead": "heads.cosine",
        "NearestETF": "geometry.nearest",
        "NearestETFHead": "heads.nearest",
        "NearestETFLoss": "heads.loss",
        "RunningClassMeans": "heads.class_means",
        "SecondPass": "metrics.streaming",
        "StratifiedBatchSampler": "sampling",
        "collapse_of": "metrics.measure",
        "cross_entropy_lower_bound": "metrics.formulas",
        "measure_collapse": "metrics.measure",
        "nearest_etf": "geometry.nearest",
        "replace_classifier": "heads.replace",
        "simplex_etf": "geometry.simplex",
    },
)
