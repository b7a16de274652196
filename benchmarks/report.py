"""Time and size of a large report: 4 heads, 5 seeds and 2000 measured epochs, with margins for all and a trace for one seed.

    python benchmarks/report.py

The limits that the project sets itself are 20 seconds and 15 MB.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from guided_collapse.report.write import write_report
from tests.report.made_up import trace, write_cost, write_run

HEADS = ("standard", "fixed", "implicit", "implicit-lagged")
SEEDS, EPOCHS = 5, 2000

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        for head in HEADS:
            for seed in range(SEEDS):
                write_run(runs, "ufm-10", head, seed, epochs=EPOCHS, trace=trace(seed=seed) if seed == 0 else None)
        write_cost(runs / "ufm-10", "ufm-10")
        start = time.perf_counter()
        page = write_report([runs], Path(folder, "report")).page
        seconds = time.perf_counter() - start
        print(f"{seconds:.1f} s, report.html {page.stat().st_size / 1e6:.1f} MB")
