import io
import sys

from guided_collapse.metrics.machinery.progress import counted


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_the_count_and_others_nothing(monkeypatch):
    for stream, expected in ((Terminal(), "\rpass: batch 1/2\rpass: batch 2/2\n"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(counted(["a", "b"], "pass")) == ["a", "b"]
        assert stream.getvalue() == expected
