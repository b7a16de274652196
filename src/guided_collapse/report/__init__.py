"""The report: tables, figures for print and a page to look at, from the records of runs alone."""

from typing import TYPE_CHECKING

from guided_collapse.lazy import on_demand

if TYPE_CHECKING:
    from guided_collapse.report.write import write_report

__all__ = ["write_report"]

__getattr__, __dir__ = on_demand(__name__, {"write_report": "report.write"})
