"""A lock on the folder of a run, so that never two processes write there.

Why not the package filelock: it leaves its file in the folder for good, and a file that we removed for it would make a process that
opened it just before look like a second owner, or fail as if somebody were there, by version. Where the file system has no locks it
makes one of a file alone, which outlives a killed process. Here the file goes with its owner, and a file system without locks is
used without.
"""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from guided_collapse.experiments.errors import WorkError, requested

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


SECONDS_BETWEEN_LOOKS = 0.5


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps the folder from every other process that asks for it, on this machine or another.

    The end of the process frees it, however it comes. Where the system or the file system has no such locks, nothing is kept.

    Raises:
        RequestError: if the folder cannot be written.
        WorkError: if another process has it.
    """
    path = folder / ".lock"
    with _locked_file(path, folder) as file:
        try:
            _say_whose(file)
            yield
        finally:
            # Windows removes no file that is open: there it stays, and does no harm.
            with suppress(PermissionError):
                path.unlink(missing_ok=True)


def wait_until_free(folder: Path) -> None:
    """Waits while another process is at work in the folder, and says so once."""
    said = False
    while folder.is_dir():
        try:
            with locked(folder):
                return
        except WorkError as error:
            if not said:
                print(f"waiting: {error}", file=sys.stderr)
            said = True
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _locked_file(path: Path, folder: Path) -> IO[str]:
    """The open file that is at the path, locked."""
    while True:
        with requested():
            file = path.open("a")
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            file.close()
            raise WorkError(
                f"another process is at work in {folder}{_owner(path)}. Wait for its end or stop it, or choose another --out."
            ) from error
        except OSError:
            return file  # this file system cannot lock
        # Whoever had the lock may have removed this file between its opening and its locking: it keeps nobody away then.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _say_whose(file: IO[str]) -> None:
    """Names this process in its lock, if the disk has room for that; unbuffered, so that nothing is left to fail at the end."""
    with suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())


def _owner(path: Path) -> str:
    """What the owner of a lock says of itself, in brackets; empty if it has gone meanwhile, or cannot be read, as on Windows."""
    try:
        owner = path.read_text(errors="replace")
    except OSError:
        return ""
    return f" ({owner})" if owner else ""


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
