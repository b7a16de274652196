"""Text from records, which may hold anything, on one line, and lines in columns."""

import re
from collections.abc import Sequence

TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"


def one_line(text: str) -> str:
    """Text without line breaks, tabs and other control characters, and without marks that turn the direction of what follows."""
    return re.sub(rf"[\s\x00-\x1f\x7f-\x9f{TURNS}]+", " ", text).strip()


def short_commit(commit: str) -> str:
    """The first seven digits of a commit, as git itself shortens it; a plus after it stays."""
    return re.sub(r"\b([0-9a-f]{7})[0-9a-f]{33}\b", r"\1", commit)


def shortened(text: str, most: int = 500) -> str:
    """Text on one line, cut off where it is longer than anybody reads."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[:most]} …"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a text table: a line for each row, whose cells stand under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
