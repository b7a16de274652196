"""Curves for TensorBoard."""

from pathlib import Path
from types import TracebackType
from typing import Any

from guided_collapse.optional import optional


class Curves:
    """Writes every number of a record, or nothing without a folder.

    Args:
        folder: where TensorBoard's files go.

    Raises:
        MissingPackageError: if TensorBoard is not installed.
    """

    def __init__(self, folder: Path | None) -> None:
        self.writer: Any = None
        if folder is None:
            return
        tensorboard = optional("torch.utils.tensorboard", extra="tensorboard", package="tensorboard")
        self.writer = tensorboard.SummaryWriter(str(folder))

    def __enter__(self) -> "Curves":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.writer is not None:
            self.writer.close()

    def add(self, record: dict[str, Any]) -> None:
        """Adds the numbers of an epoch."""
        if self.writer is None:
            return
        for part in ("running", "train", "test"):
            for name, value in record.get(part, {}).items():
                if value is not None:
                    self.writer.add_scalar(f"{part}/{name}", value, record["epoch"])
