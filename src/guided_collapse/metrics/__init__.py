"""Neural collapse, measured: class statistics, the metrics on them, and the same from a stream, a model or a file."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.metrics.collapse import measure_collapse, nc1, nc2, nc3, nc4

__all__ = ["measure_collapse", "nc1", "nc2", "nc3", "nc4"]

__getattr__, __dir__ = on_demand(__name__, dict.fromkeys(__all__, "metrics.collapse"))
