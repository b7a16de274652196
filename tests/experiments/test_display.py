import io
import re
import sys

import torch

from guided_collapse.experiments import display as module
from guided_collapse.experiments.display import Display, Series
from guided_collapse.experiments.run import EpochRecord

RECORD = EpochRecord(20, train={"loss": 0.0123, "top1": 0.9993, "nc1": 0.0123}, test={"loss": 0.08, "top1": 0.9778})


def terminal_as_stderr(monkeypatch):
    """A terminal of 80 columns; not a fixture, because pytest sets standard error again before a test."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    return found


def lines(terminal):
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    return text.replace("\r", "\n").strip().splitlines()


def shown(series=None, title="cifar100-resnet50 nearest-etf-detached seed 12", quiet=False):
    with Display(title, 200_000, 100_000, quiet=quiet, silent=False, series=series) as display:
        display.say("from epoch 101 of 200 on cpu")
        display.step(101, torch.tensor(123.456), torch.tensor(99), 100)
        display.add(RECORD)


def test_the_bar_of_one_run_fits_eighty_columns(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    shown()
    found = lines(terminal)
    assert "cifar100-resnet50 nearest-etf-detached seed 12: from epoch 101 of 200 on cpu" in found
    assert "epoch 20  train loss 0.0123 acc 99.93%  test loss 0.0800 acc 97.78%  NC1 0.0123" in [line.strip() for line in found]
    (bar,) = {line.strip() for line in found if "50%" in line and "epoch 101" in line}
    assert re.search(r"50%\s+epoch 101  loss 1\.2346  training-mode acc 99\.0%", bar)
    assert max(map(len, found)) <= 80


def test_a_run_of_several_leaves_one_line(monkeypatch):
    terminal = terminal_as_stderr(monkeypatch)
    series = Series(12)
    series.done = 2
    shown(series, title="digits nearest-etf seed 1")
    found = lines(terminal)
    assert found[-1] == "run 3 of 12: digits nearest-etf seed 1: train acc 99.93%  test acc 97.78%  NC1 0.0123"
    assert not any("from epoch" in line for line in found)
    assert any(line.startswith("run 3 of 12 ") and "epoch 101" in line for line in found)


def test_without_a_terminal_each_measurement_is_a_line(capsys):
    series = Series(12)
    shown(series, title="digits nearest-etf seed 1", quiet=True)
    assert [line.partition("seed 1: ")[2][:14] for line in capsys.readouterr().err.splitlines()] == [
        "from epoch 101",
        "epoch 20  trai",
    ]


def test_the_time_left_counts_what_was_trained_here(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    series = Series(5)
    assert series.left() == ""
    series.done = 1  # skipped
    now[0] += 30
    assert series.left(part=0.5) == "3:30 left"  # 30 s for half a run, and three and a half to go
    assert series.left(part=0.75, part_before=0.5) == "6:30 left"
    series.done, series.trained = 2, 1.0
    now[0] += 3570
    assert series.left() == "3:00:00 left"
