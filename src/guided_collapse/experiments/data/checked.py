"""Files of data sets, compared with the checksums that are known or were recorded when they were downloaded."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from guided_collapse.experiments.data.known import KnownData, known_data
from guided_collapse.experiments.data.readers.idx import find_idx_file, possibly_compressed
from guided_collapse.experiments.data.sources import data_folder, load_data
from guided_collapse.experiments.data.split import ImageData
from guided_collapse.experiments.records.files import write_json

RECORD = "downloaded.json"
STAMPS = "checked.json"


def load_checked(name: str, *, root: Path | None = None, image_size: int | None = None) -> ImageData:
    """The data set of this name, as `load_data` has it, if the files that it came from are those of the real one.

    Files with a known checksum, or one recorded when they were downloaded, are compared with it once, and again when their size or
    time of change is another. Of other files, such as class folders, nothing is known to compare.

    Args:
        name: as for `load_data`.
        root: None takes `data_root()`.
        image_size: as for `load_data`.

    Raises:
        MissingData: if it is not there, with the command that gets it.
        ValueError: for an unknown name, damaged files, or files with another checksum.
    """
    data = load_data(name, root=root, image_size=image_size)
    compare_once(data.name, files_with_checksums(data, known_data(name)), stamps=data_folder(name, root) / STAMPS)
    return data


def files_with_checksums(data: ImageData, known: KnownData) -> dict[Path, str]:
    """The files that the data came from whose sha256 is known, with it."""
    if data.location is None:
        return {}
    if data.location.name in known.checksums:
        return {data.location: known.checksums[data.location.name]}
    if data.location.is_file():
        recorded = recorded_checksums(data.location.parent)
        return {path: checksum for path, checksum in recorded.items() if path == data.location}
    found = {find_idx_file(data.location, stem): checksum for stem, checksum in known.checksums.items()}
    return {path: checksum for path, checksum in found.items() if path is not None} or recorded_checksums(data.location)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's contents; of what is inside if its name ends in .gz, so that it does not depend on the compression.

    Raises:
        ValueError: for a file that cannot be read.
    """
    with possibly_compressed(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compare(name: str, path: Path, expected: str) -> None:
    """Compares the file with its sha256.

    Raises:
        ValueError: if it has another one, or cannot be read.
    """
    found = sha256_of(path)
    if found != expected:
        raise ValueError(
            f"{path} must have the sha256 {expected}; it has {found}. Remove it and run: guided-collapse data {name}. "
            "Data of your own go into class folders, given as --data FOLDER."
        )


def compare_once(name: str, files: Mapping[Path, str], *, stamps: Path) -> None:
    """Compares the files with their sha256, unless that was done before and they have not changed since.

    Args:
        name: of the data set.
        files: with their checksums.
        stamps: the file that remembers size, time of change and checksum of every file that agreed. It is a convenience: where it
            cannot be read or written, files are compared each time.

    Raises:
        ValueError: for a file that does not agree.
    """
    known = _read(stamps)
    current = {str(path.absolute()): [path.stat().st_size, path.stat().st_mtime_ns, checksum] for path, checksum in files.items()}
    for (path, checksum), (place, stamp) in zip(files.items(), current.items(), strict=True):
        if known.get(place) != stamp:
            compare(name, path, checksum)
    if not current.items() <= known.items():
        with contextlib.suppress(OSError):
            stamps.parent.mkdir(parents=True, exist_ok=True)
            write_json(stamps, known | current)


def record_download(folder: Path, origin: Mapping[str, str | None], files: Iterable[Path]) -> None:
    """Writes down what was downloaded.

    Args:
        folder: holds the files, at any depth.
        origin: where they came from, in plain values: a repository and its revision, or an address.
        files: what came.

    Raises:
        OSError: if the folder cannot be written to.
        ValueError: for a file that cannot be read.
    """
    checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(files)}
    write_json(folder / RECORD, {**origin, "sha256": checksums})


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


def _read(stamps: Path) -> dict[str, Any]:
    if not stamps.is_file():
        return {}
    try:
        known = json.loads(stamps.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
