"""A folder that one process works in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    if fcntl is None:
        yield
        return
    path = folder / ".lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RuntimeError(
                f"another process is at work in {folder}. Wait for its end or stop it, or choose another --out."
            ) from error
        except OSError:
            pass  # this file system cannot lock
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
