"""Metrics of neural collapse for features, streams of batches, models and files."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.metrics.cross_tests import CompatibilityResult, RetrievalResult, compatibility, retrieval
    from guided_collapse.metrics.embeddings import embeddings_of
    from guided_collapse.metrics.formulas import cross_entropy_lower_bound
    from guided_collapse.metrics.measure import collapse_of, measure_collapse, nc1, nc2, nc3, nc4
    from guided_collapse.metrics.result import CollapseResult
    from guided_collapse.metrics.streaming import CollapseMetrics, SecondPass

__all__ = [
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
    "nc1",
    "nc2",
    "nc3",
    "nc4",
    "retrieval",
]

__getattr__, __dir__ = on_demand(
    __name__,
    dict.fromkeys(("collapse_of", "measure_collapse", "nc1", "nc2", "nc3", "nc4"), "metrics.measure")
    | dict.fromkeys(("CollapseMetrics", "SecondPass"), "metrics.streaming")
    | dict.fromkeys(("CompatibilityResult", "RetrievalResult", "compatibility", "retrieval"), "metrics.cross_tests")
    | {"embeddings_of": "metrics.embeddings", "CollapseResult": "metrics.result", "cross_entropy_lower_bound": "metrics.formulas"},
)
