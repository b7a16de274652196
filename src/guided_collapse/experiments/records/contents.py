"""What a file holds, as far as a report takes it: a record may be damaged, or made to harm."""

import gzip
import io
import zlib
from pathlib import Path
from typing import Any

from guided_collapse.experiments.records.fields import RecordError, parse_object, told_of

MOST_BYTES = 2**28  # many times the longest records there are


def read_bytes(path: Path) -> bytes | None:
    """The bytes of a file; None if there is none.

    Raises:
        RecordError: for a file that cannot be read or is too large, and for what is no file.
    """
    try:
        # A pipe would be waited for, and a device may have no end.
        if path.exists() and not path.is_file():
            raise RecordError(f"{path.name} cannot be read: it is no file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path.name} cannot be read: {error}") from error
    check_size(path, len(content))
    return content


def read_text(path: Path) -> str | None:
    """The text of a file, which is compressed if its name ends in .gz; None if there is none.

    Raises:
        RecordError: as for `read_bytes`, and for a damaged archive or what is no text.
    """
    content = read_bytes(path)
    if content is None:
        return None
    try:
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as archive:
                content = archive.read(MOST_BYTES + 1)
        check_size(path, len(content))
        return content.decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise RecordError(f"{path.name} cannot be read: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        RecordError: if there is no file, or it cannot be read or holds no JSON object.
    """
    text = read_text(path)
    if text is None:
        raise RecordError(f"{path.name} cannot be read: there is none")
    with told_of(path.name):
        return parse_object(text)


def check_size(path: Path, num_bytes: int) -> None:
    """Refuses what would fill the memory."""
    if num_bytes > MOST_BYTES:
        raise RecordError(f"{path.name} cannot be read: it must hold at most {MOST_BYTES >> 20} MB")
