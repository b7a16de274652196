"""`make demo` in a terminal of 100 columns: no line is wrapped."""

import os
import pty
import re
import shlex
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

COLUMNS = 100
ESCAPE = re.compile(r"\x1b\[[\d;?]*([A-Za-z])")


def demo():
    """The words of the command that `make demo` runs."""
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    return shlex.split(re.search(r"bin/guided-collapse (compare digits .*)", makefile)[1])


def printed_in_a_terminal(words, folder):
    """Returns what a process writes to a pseudo-terminal, and its exit status."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ |= {"COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
        os.execv(sys.executable, [sys.executable, "-m", "guided_collapse.experiments.cli", *words])
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # Linux says so when the process has ended
        pass
    os.close(terminal)
    return written.decode(), os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def widths(written):
    """Yields the width of every line, and the line; a carriage return or cursor movement restarts at the first column."""
    for line in re.split(r"\r|\n", ESCAPE.sub(lambda found: "" if found[1] in "mhlKJ" else "\r", written)):
        yield len(line), line


@pytest.mark.timeout(600)
def test_no_line_of_the_demo_is_wrapped(tmp_path):
    written, status = printed_in_a_terminal([*demo(), "--epochs", "1", "--accelerator", "cpu", "--out", "runs"], tmp_path)
    assert status == 0, written
    assert "run 12 of 12" in written
    assert "Open this page: file://" in written
    wide = [line for width, line in widths(written) if width > COLUMNS and not line.startswith("Open this page: file://")]
    assert wide == []


def test_a_wrapped_line_would_be_found():
    assert [width for width, _ in widths("a\x1b[31mb\x1b[0m\r" + "x" * 101 + "\x1b[2K\x1b[1Ayz\n")] == [2, 101, 2, 0]
