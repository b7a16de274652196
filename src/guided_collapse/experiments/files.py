"""Atomic file writes, and locks on folders."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from guided_collapse.experiments.errors import WorkError, requested


class NotWrittenError(OSError):
    """A file could not be written; its earlier version is intact."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path. The file written there replaces `path` on success and is removed on failure.

    Raises:
        NotWrittenError: if the file cannot be written, for example because the disk is full.
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
        raise NotWrittenError(
            error.errno,
            f"{path} could not be written: {error.strerror or error}. Its earlier version, if any, is intact. "
            "Free some space or choose another folder, and run the command again.",
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically; see `atomic_write`."""
    with atomic_write(path) as beside:
        beside.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Writes a value to a JSON file atomically."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def checksum(content: bytes) -> str:
    """Returns the SHA-256 checksum of the content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the folder, or raises WorkError if another process holds the lock. A process that is killed releases its lock."""
    lock = FileLock(folder / ".lock")
    try:
        with requested():
            lock.acquire(timeout=0)
    except Timeout as error:
        raise WorkError(f"another process is using {folder}. Wait for it or stop it, or choose another --out.") from error
    try:
        yield
    finally:
        lock.release()
