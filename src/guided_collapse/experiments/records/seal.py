"""The seal of a finished model: which run it is of, which files belong to it, and a checksum, in the metadata of its file.

A file of safetensors is the length of its header in 8 bytes, the header in JSON, and the tensors. The checksum is that of the whole
file with zeros in the place of the checksum.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guided_collapse.experiments.records.files import checksum
from guided_collapse.experiments.records.schema import CHECKSUM
from guided_collapse.lazy import optional

UNKNOWN = "0" * 64
LENGTH_BYTES, ALIGNMENT = 8, 8
LONGEST_HEADER = 2**26  # bytes


@dataclass(frozen=True)
class Seal:
    """What a finished model says of itself."""

    facts: dict[str, Any]
    """The contents of `config.json` when the run finished."""
    files: Mapping[str, str]
    """The checksums of the files that were written with it, by name."""


def sealed(content: bytes, seal: Seal) -> bytes:
    """The contents of a file of safetensors with this seal in it."""
    header, tensors = _parts(content)
    said = json.dumps({"facts": seal.facts, "files": seal.files})
    text = json.dumps({"__metadata__": {"format": "pt", "run": said, CHECKSUM: UNKNOWN}} | header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    whole = len(text).to_bytes(LENGTH_BYTES, "little") + text + tensors
    return whole.replace(UNKNOWN.encode(), checksum(whole).encode(), 1)


def read_seal(path: Path) -> Seal | None:
    """The seal of a model's file that is whole; None if it has none, as those of earlier versions.

    Raises:
        ValueError: if the file is damaged.
    """
    safetensors = optional("safetensors", extra="experiments")
    content = path.read_bytes()
    try:
        with safetensors.safe_open(path, "numpy"):
            pass  # the header and the length of the file fit each other
        metadata = _parts(content)[0].get("__metadata__")
        if metadata is None:
            return None
        said = metadata[CHECKSUM]
        if checksum(content.replace(said.encode(), UNKNOWN.encode(), 1)) != said:
            raise ValueError("it is not as it was written")
        return _seal(metadata)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def seal_in_header(path: Path) -> Seal | None:
    """What the header of a model's file says, without a look at the tensors; None if it says nothing that can be understood."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            return _seal(json.loads(file.read(min(length, LONGEST_HEADER)))["__metadata__"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _seal(metadata: Mapping[str, str]) -> Seal:
    run = json.loads(metadata["run"])
    return Seal(dict(run["facts"]), dict(run["files"]))


def _parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors."""
    end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(content[LENGTH_BYTES:end])
    return header, content[end:]
