"""The kinds of errors: a command ends with status 2 after a RequestError, and with 1 after any other."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from guided_collapse.lazy import how_to_install


class RequestError(ValueError):
    """The request cannot be carried out, as with an unknown head or a missing folder; nothing has been started."""


class InputError(RequestError):
    """The data or the network cannot be used, by this run or any other of the same comparison."""


class DamageError(ValueError):
    """A file is damaged, was altered, or belongs to something else, as a checkpoint of another run."""


class WorkError(RuntimeError):
    """The request was fine, but something failed on the way, as when one of several processes died."""


# The path does not exist, is of the wrong kind, or is not the user's. Every other system error is a failure on the way.
WRONG_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


@contextmanager
def requested(kind: type[RequestError] = RequestError) -> Iterator[None]:
    """Turns a ValueError, or an OSError about an unusable path, into that kind of error: the code inside checks user input."""
    try:
        yield
    except (kind, DamageError):
        raise
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in WRONG_PLACE:
            raise
        raise kind(in_words(error)) from error


def check_choice(name: str, value: object, legal: Sequence[str], *, shown_by: str | None = None) -> None:
    """Raises RequestError, with the closest of the legal values, for a value that is not among them.

    The message lists all legal values, unless it names the command that shows them.
    """
    if value not in legal:
        near = get_close_matches(str(value), legal, n=2)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        known = f"one that `{shown_by}` shows" if shown_by else f"one of {', '.join(legal)}"
        raise RequestError(f"{name} must be {known}; got {value!r}.{guess}")


def in_words(error: BaseException) -> str:
    """The message of an error, on one line."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{text}. {how_to_install(error.name.split('.')[0], extra='experiments')}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in text):
        found = f" ({text})" if text else ""
        return f"memory ran out{found}. Make the batch or the network smaller, or use a machine with more memory."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return text or type(error).__name__
