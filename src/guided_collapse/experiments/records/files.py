"""Files that are written whole or not at all."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class NotWrittenError(OSError):
    """A file could not be written; what was in its place is as it was."""

    def __init__(self, path: Path, reason: OSError) -> None:
        words = f"{path} could not be written: {reason.strerror or reason}. What was there before is whole"
        super().__init__(reason.errno, f"{words}. Make room, or choose another place, and give the command again.")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when everything has gone well, and leaves no trace otherwise.

    Raises:
        NotWrittenError: if the system refuses, as it does for a full disk.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield beside
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except NotWrittenError:
        raise
    except OSError as error:
        raise NotWrittenError(path, error) from error
    finally:
        beside.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file.

    Raises:
        NotWrittenError: if the system refuses.
    """
    with written_whole(path) as beside:
        beside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Writes a text file."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def checksum(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def remove_leftovers(folder: Path) -> None:
    """Removes what writes that were killed have left behind."""
    for file in folder.glob(".*.part"):
        file.unlink(missing_ok=True)
