"""How a command ends: exit statuses, and errors in words."""

import errno

from guided_collapse.optional import how_to_install

DONE, FAILED, WRONG_REQUEST, INTERRUPTED, NOBODY_READS = 0, 1, 2, 130, 141

# A place that the user named is not there, is of another kind, or is not theirs. Every other error of the system came on the way.
WRONG_PLACE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
)


def status_of(error: Exception) -> int:
    """A wrong request, or something that failed on the way."""
    if isinstance(error, OSError):
        return WRONG_REQUEST if error.errno in WRONG_PLACE else FAILED
    return WRONG_REQUEST if isinstance(error, (ValueError, ModuleNotFoundError)) else FAILED


def in_words(error: Exception) -> str:
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
