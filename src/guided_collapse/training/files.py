"""Files that are written whole or not at all."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when everything has gone well, and leaves no trace otherwise."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.chmod(0o666 & ~_file_mode_mask())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _file_mode_mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Writes a text file."""
    with written_whole(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def remove_leftovers(folder: Path) -> None:
    """Removes what writes that were killed have left behind."""
    for file in folder.glob(".*.part"):
        file.unlink(missing_ok=True)
