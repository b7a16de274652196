"""Reports built from the records of runs: tables, figures, and an interactive page. Also loads and plots runs."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.experiments.report.figures import plot_collapse
    from guided_collapse.experiments.report.summaries import load_runs
    from guided_collapse.experiments.report.write import write_report

__all__ = ["load_runs", "plot_collapse", "write_report"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "load_runs": "experiments.report.summaries",
        "plot_collapse": "experiments.report.figures",
        "write_report": "experiments.report.write",
    },
)
