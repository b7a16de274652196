"""A folder that one process works in."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """Keeps the folder from every other process that asks for it, on this machine or another.

    The end of the process frees it, however it comes. Where the system or the file system has no such locks, nothing is kept.

    Raises:
        RuntimeError: if another process has it.
    """
    path = folder / ".lock"
    with _locked(path, folder):
        try:
            yield
        finally:
            # Windows removes no file that is open: there it stays, and does no harm.
            with suppress(PermissionError):
                path.unlink(missing_ok=True)


def _locked(path: Path, folder: Path) -> IO[str]:
    """The open file that is at the path, locked."""
    while True:
        file = path.open("a")
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            file.close()
            raise RuntimeError(
                f"another process is at work in {folder}. Wait for its end or stop it, or choose another --out."
            ) from error
        except OSError:
            return file  # this file system cannot lock
        # Whoever had the lock may have removed this file between its opening and its locking: it keeps nobody away then.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _lock(file: IO[str]) -> None:
    """Locks without waiting, until the file is closed.

    Raises:
        OSError: if another has it locked, or nothing can be locked here.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
