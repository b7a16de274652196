"""Experiments: presets, training, comparisons of heads over seeds, searches for their settings, and reports.

Names are imported when first used, so that looking at a preset does not import torch.
"""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.experiments.comparison import Comparison, compare
    from guided_collapse.experiments.configuration import Configuration, Placement
    from guided_collapse.experiments.grid_search import planned_search, search
    from guided_collapse.experiments.loop import train
    from guided_collapse.experiments.presets import PRESETS, preset
    from guided_collapse.experiments.report.figures import plot_collapse
    from guided_collapse.experiments.report.summaries import load_runs
    from guided_collapse.experiments.report.write import write_report

__all__ = [
    "PRESETS",
    "Comparison",
    "Configuration",
    "Placement",
    "compare",
    "load_runs",
    "planned_search",
    "plot_collapse",
    "preset",
    "search",
    "train",
    "write_report",
]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        **dict.fromkeys(("Comparison", "compare"), "experiments.comparison"),
        **dict.fromkeys(("Configuration", "Placement"), "experiments.configuration"),
        **dict.fromkeys(("planned_search", "search"), "experiments.grid_search"),
        **dict.fromkeys(("PRESETS", "preset"), "experiments.presets"),
        "train": "experiments.loop",
        "load_runs": "experiments.report.summaries",
        "plot_collapse": "experiments.report.figures",
        "write_report": "experiments.report.write",
    },
)
