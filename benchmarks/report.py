"""Time and size of large reports, and how the time scales.

    python -m benchmarks.report

Long: 4 heads, 5 seeds and 2000 measured epochs, with margins for all seeds and a trace for one; the project's limits are
20 seconds and 15 MB. Wide: 300 experiments of 3 heads, 2 seeds and 20 epochs, in comparison with a fifth of them.
If the time is linear in the number of experiments, the ratio is 5.
"""

import tempfile
import time
import warnings
from pathlib import Path

from guided_collapse.experiments.report import write_report
from tests.experiments.report.made_up import trace, write_run

HEADS = ("cosine", "fixed-etf", "nearest-etf", "nearest-etf-lagged")
SEEDS, EPOCHS = 5, 2000
EXPERIMENTS = 300


def write_long(runs):
    for head in HEADS:
        for seed in range(SEEDS):
            write_run(runs, "ufm-10", head, seed, epochs=EPOCHS, trace=trace(seed=seed) if seed == 0 else None)


def write_wide(runs, experiments):
    for number in range(experiments):
        for head in HEADS[:3]:
            for seed in range(2):
                write_run(runs, f"toy-{number}", head, seed)


def seconds_of(name, write, *arguments):
    """Returns the CPU time of a report on the runs that `write` creates, and prints it with the size of the page."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "runs"), *arguments)
        start = time.process_time()
        page = write_report([Path(folder, "runs")], Path(folder, "report")).page
        seconds = time.process_time() - start
        print(f"{name}: {seconds:.1f} s, report.html {page.stat().st_size / 1e6:.1f} MB", flush=True)
    return seconds


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="figures for print")
    seconds_of("long", write_long)
    seconds_of("experiments with figures: 20", write_wide, 20)
    few, many = (seconds_of(f"experiments: {count}", write_wide, count) for count in (EXPERIMENTS // 5, EXPERIMENTS))
    print(f"5 times the experiments take {many / few:.1f} times the time")
