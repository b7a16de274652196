"""A run that is killed at any point, resumed, and compared with one that was not."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import RunFolder, run_status
from tests.experiments.runs import DIGITS, assert_same, flags_of, placed

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

CONFIGURATION = replace(DIGITS, epochs=6, flip=True, head="nearest-etf", measure_every=2)


def start(folder):
    command = [sys.executable, "-m", "guided_collapse.experiments.cli", "train", "digits", *flags_of(CONFIGURATION)]
    command += ["--out", str(folder), "--accelerator", "cpu", "--quiet", "--checkpoint-seconds", "0"]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def test_killed_while_saving_and_resumed_equals_not_killed(tmp_path, capsys):
    whole = train(CONFIGURATION, placed(tmp_path / "whole"))
    run = RunFolder.of(CONFIGURATION, tmp_path / "killed")
    process = start(tmp_path / "killed")
    while process.poll() is None and not ((run.path / "previous.ckpt").exists() and any(run.path.glob(".last.ckpt.*.part"))):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run_status(run.path).state == "unfinished"
    assert main(["resume", str(run.path), "--accelerator", "cpu", "--quiet"]) == 0
    assert capsys.readouterr().out == f"{run.path}\n"
    assert_same(whole, run)
    assert not list(run.path.glob(".*.part"))
