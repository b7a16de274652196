"""Checkpoints: everything that an exact resume needs, with a checksum, and the one before as a fallback.

A file is 32 bytes of SHA-256 and then what torch.save writes. It holds tensors and plain values only, and is loaded as such.
"""

import hashlib
import io
import warnings
from pathlib import Path
from typing import Any

import torch

from guided_collapse.training.files import written_whole

LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
DIGEST_BYTES = 32


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


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; None if there is none.

    Warns:
        RuntimeWarning: for each that is damaged.
    """
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        content = path.read_bytes()
        digest, payload = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() == digest:
            state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
            return state
        warnings.warn(f"{path} is damaged and is left out; going back to the checkpoint before.", RuntimeWarning, stacklevel=2)
    return None
