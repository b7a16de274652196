"""Checksums of files."""

import hashlib
from pathlib import Path

from guided_collapse.data.readers.idx import possibly_compressed


def sha256_of(path: Path) -> str:
    """The sha256 of a file's contents; of what is inside if its name ends in .gz, so that it does not depend on the compression.

    Raises:
        ValueError: for a file that cannot be read.
    """
    with possibly_compressed(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
