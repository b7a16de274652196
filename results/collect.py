"""Copies the records of finished runs, without models and checkpoints, into `results/records`.

    python results/collect.py RUNS

RUNS is a folder as `guided-collapse` writes it. Of an experiment those seeds are taken that all its heads have finished. Of a
search its record is taken, which says what the trials came to, and the runs with fresh seeds.
Measurements are compressed, without seconds, because the runs shared a machine and were paused at times. Sorted margins are thinned
to as many as the report draws. Of the traces, which the animation shows, only that of seed 0 is taken.
"""

import gzip
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from guided_collapse.experiments.records import read_margins
from guided_collapse.experiments.run_format import records_as_text, records_from_text
from guided_collapse.experiments.records import read_record
from guided_collapse.experiments.records import COST, METRICS_COMPRESSED, SEARCH, SearchRecord
from guided_collapse.experiments.run_format import CONFIG, MARGINS, METRICS, MODEL, TRACE
from guided_collapse.experiments.report.summaries import MOST_MARGINS
from guided_collapse.experiments.grid_search import CHOSEN

HERE = Path(__file__).parent


def collect(runs: Path, out: Path) -> int:
    """Copies and returns how many runs there were."""
    searches = [file for file in sorted(runs.glob(f"*/{SEARCH}")) if read_record(file, SearchRecord).choice]
    experiments = sorted({*runs.iterdir(), *(folder for file in searches for folder in (file.parent / CHOSEN).glob("*"))})
    finished = [run for experiment in experiments for run in seeds_of_all_heads(experiment)]
    for run in finished:
        folder = out / run.relative_to(runs)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run / CONFIG, folder / CONFIG)
        np.savez_compressed(folder / MARGINS, **{split: thinned(m) for split, m in read_margins(run / MARGINS).items()})
        records = records_from_text((run / METRICS).read_text(encoding="utf-8"))
        text = records_as_text(replace(record, seconds=None) for record in records)
        (folder / METRICS_COMPRESSED).write_bytes(gzip.compress(text.encode(), mtime=0))
        if run.name == "seed-0" and (run / TRACE).exists():
            shutil.copyfile(run / TRACE, folder / TRACE)
    for cost in sorted(runs.glob(f"*/{COST}")):
        (out / cost.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cost, out / cost.parent.name / COST)
    for search in searches:
        (out / search.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(search, out / search.parent.name / SEARCH)
    return len(finished)


def seeds_of_all_heads(experiment: Path) -> list[Path]:
    """The runs of those seeds that every head has finished."""
    heads = sorted({run.parent for run in experiment.glob("*/seed-*") if (run / CONFIG).is_file()})
    seeds = [{model.parent.name for model in head.glob(f"seed-*/{MODEL}")} for head in heads]
    return [head / seed for head in heads for seed in sorted(set.intersection(*seeds))]


def thinned(values: np.ndarray) -> np.ndarray:
    """At most so many of sorted values, evenly spaced, between neighbors in proportion."""
    places = np.linspace(0, len(values) - 1, min(MOST_MARGINS, len(values)))
    return np.interp(places, np.arange(len(values)), values).astype(np.float32)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("Usage: python results/collect.py RUNS, where RUNS is a folder of runs.")
    print(f"{collect(Path(sys.argv[1]), HERE / 'records')} runs")
