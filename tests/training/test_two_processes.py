"""Two real processes with the batch of one."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from guided_collapse.training.loop import train
from guided_collapse.training.run import RunFolder
from tests.training.runs import DIGITS, flags_of, placed, records

# Twelve steps an epoch. Without BatchNorm, whose statistics are each process's own on CPUs; with gain 1, because steps ten times as
# long multiply rounding errors tenfold every few steps.
CONFIGURATION = replace(DIGITS, epochs=2, batch_size=128, batch_norm=False, gain=1.0)


def run_with_two(configuration, folder):
    command = [sys.executable, "-m", "guided_collapse.cli", "train", "digits", *flags_of(configuration), "--out", str(folder)]
    command += ["--accelerator", "cpu", "--devices", "2", "--quiet"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = RunFolder.of(configuration, folder)
    assert done.stdout.splitlines()[-1] == str(run.path)
    return records(run)


@pytest.mark.parametrize("optimiser", ["agd", "sgd"])
def test_the_loss_is_that_of_one_process(optimiser, tmp_path):
    configuration = replace(CONFIGURATION, optimiser=optimiser)
    one, two = records(train(configuration, placed(tmp_path / "one"))), run_with_two(configuration, tmp_path / "two")
    for mine, theirs in zip(one, two, strict=True):
        assert theirs["running"] == pytest.approx(mine["running"], rel=1e-4)
        for part in ("train", "test"):
            for name, value in mine[part].items():
                if theirs[part][name] is not None:
                    # VCI has the inverse of S_W, whose smallest eigenvalues are rounding errors of the features.
                    tolerance = 2e-2 if name == "vci" else 1e-4
                    assert theirs[part][name] == pytest.approx(value, rel=tolerance, abs=1e-5), (part, name)
