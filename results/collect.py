"""Copies the records of finished runs, without models and checkpoints, into `results/records`.

    python results/collect.py RUNS

RUNS is a folder as `guided-collapse` writes it. Of an experiment those seeds are taken that all its heads have finished.
Measurements are compressed, without seconds, because the runs shared a machine and were paused at times. Sorted margins are thinned
to as many as the report draws. Of the traces, which the animation shows, only that of seed 0 is taken.
"""

import gzip
import json
import shutil
import sys
from pathlib import Path

import numpy as np

from guided_collapse.records.arrays import read_margins
from guided_collapse.report.margins import MOST_POINTS

HERE = Path(__file__).parent


def collect(runs: Path, out: Path) -> int:
    """Copies and returns how many runs there were."""
    finished = [run for experiment in sorted(runs.iterdir()) for run in seeds_of_all_heads(experiment)]
    for run in finished:
        folder = out / run.relative_to(runs)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run / "config.json", folder / "config.json")
        np.savez_compressed(folder / "margins.npz", **{split: thinned(m) for split, m in read_margins(run / "margins.npz").items()})
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        text = "".join(json.dumps({name: value for name, value in line.items() if name != "seconds"}) + "\n" for line in lines)
        (folder / "metrics.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        if run.name == "seed-0" and (run / "trace.npz").exists():
            shutil.copyfile(run / "trace.npz", folder / "trace.npz")
    for cost in sorted(runs.glob("*/cost.json")):
        (out / cost.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cost, out / cost.parent.name / "cost.json")
    return len(finished)


def seeds_of_all_heads(experiment: Path) -> list[Path]:
    """The runs of those seeds that every head has finished."""
    heads = sorted({run.parent for run in experiment.glob("*/seed-*")})
    seeds = [{model.parent.name for model in head.glob("seed-*/model.safetensors")} for head in heads]
    return [head / seed for head in heads for seed in sorted(set.intersection(*seeds))]


def thinned(values: np.ndarray) -> np.ndarray:
    """At most so many of sorted values, evenly spaced, between neighbours in proportion."""
    places = np.linspace(0, len(values) - 1, min(MOST_POINTS, len(values)))
    return np.interp(places, np.arange(len(values)), values).astype(np.float32)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("Usage: python results/collect.py RUNS, where RUNS is a folder of runs.")
    print(f"{collect(Path(sys.argv[1]), HERE / 'records')} runs")
