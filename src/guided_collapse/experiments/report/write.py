"""Writes the files of a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from guided_collapse.experiments.files import write_bytes
from guided_collapse.experiments.records import read_records
from guided_collapse.experiments.report.figures import all_figures
from guided_collapse.experiments.report.formats import csv_text, latex, markdown
from guided_collapse.experiments.report.page import page
from guided_collapse.experiments.report.styles import styles_of
from guided_collapse.experiments.report.summaries import by_experiment
from guided_collapse.experiments.report.tables import all_tables

PAPER_EPOCHS = (50, 200)


class ReportSummary(NamedTuple):
    """The files of a report, and the records that it could not use."""

    page: Path
    files: tuple[Path, ...]  # all files written, the page last
    skipped: tuple[str, ...]  # unusable records, each with the reason


def write_report(runs: Sequence[Path], out: Path, *, epochs: Sequence[int] | None = None) -> ReportSummary:
    """Writes `report.html`, `tables/` (Markdown, CSV, LaTeX) and `figures/` (PDF, PNG) from the records of runs; loads no model.

    Computes everything before it writes the first file, and writes each file atomically.

    Args:
        runs: folders or zip archives with the folders of runs, at any depth.
        out: output folder, created if needed.
        epochs: epochs in the accuracy tables; by default 50 and 200, as in the paper, if a run reached them, or else the last.

    Raises:
        ValueError: if no run is usable, `out` cannot be created, or an epoch is below 1 or beyond the longest run.
        NotWrittenError: if a file cannot be written, for example because the disk is full.
    """
    records = read_records(runs)
    longest = max(max(run.epochs.last, run.planned or 0) for run in records.runs)
    if epochs is not None and not (epochs and min(epochs) >= 1 and max(epochs) <= longest):
        raise ValueError(f"epochs must be from 1 to {longest}, the length of the longest run; got {list(epochs)}. Leave them out.")
    for folder in (out, out / "tables", out / "figures"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"out must be a writable folder; {folder} is not: {error}") from error
    experiments = by_experiment(records.runs)
    styles = styles_of(run.head for run in records.runs)
    if epochs is None:
        last = max(run.epochs.last for run in records.runs) or 1
        epochs = [epoch for epoch in PAPER_EPOCHS if epoch <= last] or [last]
    tables = all_tables(experiments, sorted(set(epochs)), records.searches)
    contents: dict[Path, bytes] = {}
    for table in tables:
        for kind, text_of in (("md", markdown), ("csv", csv_text), ("tex", latex)):
            contents[out / "tables" / f"{table.name}.{kind}"] = text_of(table).encode("utf-8")
    contents |= {out / "figures" / name: content for name, content in all_figures(experiments, styles).items()}
    contents[out / "report.html"] = page(records, experiments, tables, styles).encode("utf-8")
    for path, content in contents.items():
        write_bytes(path, content)
    return ReportSummary(out / "report.html", tuple(contents), records.skipped)
