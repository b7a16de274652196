"""The error types. A command exits with status 2 after a RequestError or a missing package, and with 1 after any other error."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from guided_collapse.lazy import how_to_install


class RequestError(ValueError):
    """The request is invalid, for example because of an unknown head or a missing folder; nothing has been started."""


class InputError(RequestError):
    """The data or the network cannot be used; every other run of the same comparison would fail too."""


class DamageError(ValueError):
    """A file is damaged, has been altered, or does not belong to this run, such as a checkpoint of another run."""


class WorkError(RuntimeError):
    """A valid request failed at run time, for example because one of several processes died."""


# System errors about a path that is missing, of the wrong kind, or not accessible. All other system errors are run-time failures.
WRONG_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


@contextmanager
def requested(kind: type[RequestError] = RequestError) -> Iterator[None]:
    """Converts a ValueError, or an OSError about an unusable path, to an error of this kind; for code that checks user input.

    A DamageError stays as it is, because damaged files are not the user's mistake.
    """
    try:
        yield
    except (kind, DamageError):
        raise
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in WRONG_PLACE:
            raise
        raise kind(error_message(error)) from error


def check_choice(name: str, value: object, legal: Sequence[str], *, shown_by: str | None = None) -> None:
    """Raises RequestError if the value is not one of the legal ones; the message suggests the closest of them.

    The message lists all legal values or, with `shown_by`, names the command that shows them.
    """
    if value not in legal:
        near = get_close_matches(str(value), legal, n=2)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        known = f"one of those that `{shown_by}` shows" if shown_by else f"one of {', '.join(legal)}"
        raise RequestError(f"{name} must be {known}; got {value!r}.{guess}")


def error_message(error: BaseException) -> str:
    """Returns the message of an error on one line, with advice if a package is missing or memory has run out."""
    text = " ".join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{text}. {how_to_install(error.name.split('.')[0], extra='experiments')}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate" in text):
        found = f" ({text})" if text else ""
        return f"out of memory{found}. Use a smaller batch or network, or a machine with more memory."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return text or type(error).__name__
