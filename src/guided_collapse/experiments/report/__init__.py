"""The report: tables, figures for print and a page to look at, from the records of runs alone; and runs as a table or a figure."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.experiments.report.plots import plot_collapse
    from guided_collapse.experiments.report.run_table import load_runs
    from guided_collapse.experiments.report.write import write_report

__all__ = ["load_runs", "plot_collapse", "write_report"]

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "load_runs": "experiments.report.run_table",
        "plot_collapse": "experiments.report.plots",
        "write_report": "experiments.report.write",
    },
)
