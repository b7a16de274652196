"""The kinds of errors there are, which the exit status of a command follows.

| kind | for example | exit status |
|---|---|---|
| `RequestError` | an unknown head, a value out of range, a folder that is not there | 2 |
| `DamageError` | a checkpoint of another run, records that were cut off | 1 |
| `WorkError` | another process is at work in the folder, one of several processes is lost | 1 |
| all others | a full disk, no memory left, a mistake in the code | 1 |

Functions of the library refuse arguments with ValueError. Where a user's own words are checked, `requested` makes that a wrong
request.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from guided_collapse.optional import how_to_install


class RequestError(ValueError):
    """What was asked for cannot be done; nothing has been begun."""


class DamageError(ValueError):
    """A file is not what it was written as, or belongs to something else."""


class WorkError(RuntimeError):
    """The request was right, and something failed on the way."""


# A place is not there, is of another kind, or is not the user's. Every other error of the system comes on the way.
WRONG_PLACE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
)


@contextmanager
def requested() -> Iterator[None]:
    """What is refused inside, a value or a place, is a wrong request.

    Raises:
        RequestError: in place of ValueError, and of OSError for a place that cannot be used.
    """
    try:
        yield
    except (RequestError, DamageError):
        raise
    except ValueError as error:
        raise RequestError(str(error)) from error
    except OSError as error:
        if error.errno not in WRONG_PLACE:
            raise
        raise RequestError(in_words(error)) from error


def in_words(error: BaseException) -> str:
    """What an error says, on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{text}. {how_to_install(error.name.split('.')[0], extra='experiments')}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in text):
        found = f" ({text})" if text else ""
        return f"memory ran out{found}. Make the batch or the network smaller, or take a machine with more memory."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return text or type(error).__name__
