"""Checkpoints: everything that an exact resume needs, with a checksum, and the one before as a fallback.

A file is 32 bytes of SHA-256 and then what torch.save writes. It holds tensors and plain values only, and is loaded as such.
"""

import hashlib
import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from guided_collapse.experiments.errors import DamageError
from guided_collapse.experiments.records.files import written_whole
from guided_collapse.experiments.records.schema import LAST_CHECKPOINT as LAST
from guided_collapse.experiments.records.schema import PREVIOUS_CHECKPOINT as PREVIOUS
from guided_collapse.experiments.training.folder.facts import Facts, checked_facts

DIGEST_BYTES = 32


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds."""

    file: Path
    state: dict[str, Any]

    @property
    def facts(self) -> Facts | None:
        """Those of the run it was written for; None in checkpoints of earlier versions, which do not have them.

        Raises:
            DamageError: if they are of no run.
        """
        if "facts" not in self.state:
            return None
        try:
            return checked_facts(self.state["facts"])
        except ValueError as error:
            raise not_a_checkpoint(self.file, str(error)) from error


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Writes `last.ckpt`; what was there becomes `previous.ckpt`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    with written_whole(folder / LAST) as beside:
        with beside.open("wb") as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
        if (folder / LAST).exists():
            # A link, so that at no moment there is no last checkpoint.
            with written_whole(folder / PREVIOUS) as link:
                link.hardlink_to(folder / LAST)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none.

    Raises:
        DamageError: for a file that was written whole, but not as a checkpoint.

    Warns:
        RuntimeWarning: for each that is damaged.
    """
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        content = path.read_bytes()
        payload = content[DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() == content[:DIGEST_BYTES]:
            return Checkpoint(path, _unpacked(path, payload))
        warnings.warn(f"{path} is damaged and is left out; going back to the checkpoint before.", RuntimeWarning, stacklevel=2)
    return None


def _unpacked(path: Path, payload: bytes) -> dict[str, Any]:
    try:
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (UnpicklingError, EOFError, RuntimeError, ValueError, KeyError) as error:
        raise not_a_checkpoint(path, str(error)) from error
    if not isinstance(state, dict):
        raise not_a_checkpoint(path, f"it holds a {type(state).__name__}")
    return state


def not_a_checkpoint(path: Path, reason: str) -> DamageError:
    """The error for a file whose checksum is right, and whose contents are not a checkpoint of the run it is found in."""
    return DamageError(
        f"{path} must be a checkpoint of the run in its folder; got another one: {' '.join(reason.split())}. "
        "Put the right one back, or move it away to go on from the one before, if there is one."
    )
