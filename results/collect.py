"""Stores the records of finished runs, without models and checkpoints, in `results/records`: a zip archive for each experiment.

    python -m results.collect RUNS
    python -m results.collect RUNS pretrained

RUNS is a folder that `guided-collapse` wrote; the optional second argument is a folder in `results/records`. The script
keeps the seeds that all heads of an experiment have finished. Of a search, it keeps the record, with the results of the trials, and
the runs with fresh seeds. It drops times, because the runs shared a machine and were sometimes paused, thins sorted margins to the
number that the report draws, and keeps only the trace of seed 0, which the animation shows.
"""

import io
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from guided_collapse.experiments.files import checksum
from guided_collapse.experiments.grid_search import CHOSEN
from guided_collapse.experiments.records import SEARCH, Floats, SearchRecord, read_margins
from guided_collapse.experiments.report.summaries import MAX_MARGINS
from guided_collapse.experiments.run import (
    CONFIG,
    MARGINS,
    METRICS,
    TRACE,
    Finished,
    read_epoch_records,
    read_record,
    records_as_text,
    run_status,
)


def collect(runs: Path, out: Path) -> int:
    """Writes the archives and returns the number of runs in them."""
    folders = {folder.name: folder for folder in sorted(runs.iterdir()) if not (folder / SEARCH).exists()}
    searches = {}
    for file in sorted(runs.glob(f"*/{SEARCH}")):
        search = read_record(file, SearchRecord)
        if search.choice:
            searches[search.experiment] = file
            folders[search.experiment] = file.parent / CHOSEN / search.experiment
    count = 0
    for name, folder in folders.items():
        stored = {f"{run.parent.name}/{run.name}": _kept(run) for run in seeds_of_all_heads(folder)}
        contents = {f"{run}/{file}": kept for run, files in stored.items() for file, kept in files.items()}
        if name in searches:
            contents[SEARCH] = searches[name].read_bytes()
        if contents:
            out.mkdir(parents=True, exist_ok=True)
            with ZipFile(out / f"{name}.zip", "w") as archive:
                for file, kept in contents.items():
                    # Stored without the time of writing, so that identical records give identical archives.
                    archive.writestr(ZipInfo(file), kept, ZIP_DEFLATED)
        count += len(stored)
    return count


def seeds_of_all_heads(experiment: Path) -> list[Path]:
    """Returns the runs of the seeds that every head has finished."""
    runs = [run.parent for run in sorted(experiment.glob(f"*/seed-*/{CONFIG}"))]
    finished = {run for run in runs if run_status(run).state == "finished"}
    heads = {run.parent for run in runs}
    return [run for run in runs if all(head / run.name in finished for head in heads)]


def _kept(run: Path) -> dict[str, bytes]:
    margins = io.BytesIO()
    np.savez_compressed(margins, **{split: thinned(values) for split, values in read_margins(run / MARGINS).items()})
    text = records_as_text(replace(record, seconds=None) for record in read_epoch_records(run))
    files = {METRICS: text.encode(), MARGINS: margins.getvalue()}
    if run.name == "seed-0" and (run / TRACE).exists():
        files[TRACE] = (run / TRACE).read_bytes()
    sealed = Finished({name: checksum(content) for name, content in files.items()})
    facts = run_status(run).facts
    assert facts is not None, "only finished runs are collected"
    return {CONFIG: replace(facts, finished=sealed).as_text().encode(), **files}


def thinned(values: Floats) -> Floats:
    """Returns at most MAX_MARGINS of the sorted values, at evenly spaced positions, interpolated between neighbors."""
    places = np.linspace(0, len(values) - 1, min(MAX_MARGINS, len(values)))
    return np.interp(places, np.arange(len(values)), values).astype(np.float32)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not Path(sys.argv[1]).is_dir():
        sys.exit("Usage: python -m results.collect RUNS [FOLDER], where RUNS is a folder of runs.")
    print(f"{collect(Path(sys.argv[1]), Path(__file__).parent / 'records' / ''.join(sys.argv[2:]))} runs")
