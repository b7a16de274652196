"""What was downloaded: from where, which revision, and the checksum of every file."""

import json
from pathlib import Path

from guided_collapse.data.download.checksums import sha256_of
from guided_collapse.records.files import write_json

RECORD = "downloaded.json"


def record_download(folder: Path, repository: str, revision: str | None) -> None:
    """Writes down the parquet files in the folder, as they came from this revision of the repository.

    Raises:
        OSError: if the folder cannot be written to.
        ValueError: for a file that cannot be read.
    """
    checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(folder.rglob("*.parquet"))}
    record = {"repository": repository, "revision": revision, "sha256": checksums}
    write_json(folder / RECORD, record)


def recorded_checksums(folder: Path) -> dict[Path, str]:
    """The checksums of the files in the folder as they were when they were downloaded; none for files that came otherwise.

    Raises:
        ValueError: for a record that is damaged.
    """
    record = folder / RECORD
    if not record.is_file():
        return {}
    try:
        checksums = json.loads(record.read_bytes())["sha256"]
        files = {folder / name: str(checksum) for name, checksum in checksums.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{record} must be the record of a download; reading it failed: {error}. Remove {folder} and get it again."
        ) from error
    return {path: checksum for path, checksum in files.items() if path.is_file()}
