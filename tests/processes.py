"""Two real processes for tests of distributed code."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def results_of_two_processes(worker: str, folder: Path) -> list[Any]:
    """What two processes that run `worker` save.

    The worker is a program whose arguments are its rank, a file to meet at, and a folder in which it saves `rank-<rank>.pt`.
    """
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", worker, str(rank), str(folder / "rendezvous"), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [worker.communicate(timeout=150)[1][-2000:] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2)]
