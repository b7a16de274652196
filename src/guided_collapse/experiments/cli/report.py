"""`guided-collapse report RUNS... --out DIR`."""

import argparse
from pathlib import Path

from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.cli.command import DONE, FAILED


def run(words: list[str]) -> int:
    """Writes a report, which has failed in part if records could not be used."""
    description = "Write a page, tables and figures from the records of all runs in the folders."
    parser = argparse.ArgumentParser(prog="guided-collapse report", description=description)
    parser.add_argument("runs", metavar="RUNS", type=Path, nargs="+", help="folders with runs, at any depth")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--epochs", type=int, nargs="+", help="epochs that the tables show (default: 50 and 200, or the last if runs are shorter)"
    )
    request = parser.parse_args(words)
    from guided_collapse.experiments.report.write import write_report

    with requested():
        summary = write_report(request.runs, request.out, epochs=request.epochs)
    print(summary.page)
    return FAILED if summary.skipped else DONE
