import io
import re
import sys

import torch

from guided_collapse.experiments.display import Display


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_fits_eighty_columns(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    with Display("cifar100-resnet50 nearest-etf-detached seed 12", 200_000, 100_000, quiet=False, silent=False) as display:
        display.say("from epoch 101 of 200 on cpu")
        display.step(101, torch.tensor(123.456), torch.tensor(99), 100)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    assert "cifar100-resnet50 nearest-etf-detached seed 12: from epoch 101 of 200 on cpu" in text
    last = text.replace("\r", "\n").strip().splitlines()[-1]
    assert re.search(r"50%\s+epoch 101  loss 1\.2346  acc 99\.0%\s+[\d:-]+$", last), last
    assert len(last) <= 80
