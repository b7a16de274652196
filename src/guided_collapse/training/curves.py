"""Curves for TensorBoard."""

from pathlib import Path
from types import TracebackType
from typing import Any

from guided_collapse.records.schema import EpochRecord


class Curves:
    """Writes every number of a record, or nothing without a folder.

    Args:
        folder: where TensorBoard's files go.

    Raises:
        ValueError: if TensorBoard is not installed.
    """

    def __init__(self, folder: Path | None) -> None:
        self.writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("--tensorboard needs a package: pip install 'guided-collapse[tensorboard]'.") from error
        self.writer = SummaryWriter(str(folder))

    def __enter__(self) -> "Curves":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.writer is not None:
            self.writer.close()

    def add(self, record: EpochRecord) -> None:
        """Adds the numbers of an epoch."""
        if self.writer is None:
            return
        for part, values in record.parts().items():
            for name, value in values.items():
                if value is not None:
                    self.writer.add_scalar(f"{part}/{name}", value, record.epoch)
