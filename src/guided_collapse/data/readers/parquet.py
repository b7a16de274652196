"""Data sets of parquet files as they lie on the Hugging Face hub."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.data.optional import optional
from guided_collapse.data.readers.decoded import Arrays, decoded
from guided_collapse.data.readers.parquet_files import HUB, Columns, find_parquet, open_parquet, read_columns
from guided_collapse.data.readers.pictures import IN_MEMORY_BYTES, Encoded, Pictures, Shape, image_size_of
from guided_collapse.data.split import ImageData, Split


class Rows:
    """Encoded images in the rows of a table.

    Args:
        rows: item i is a mapping with the `bytes` of image i, or None.
        location: where the table is, for errors.
    """

    def __init__(self, rows: Any, location: str) -> None:
        self.rows = rows
        self.location = location

    def __len__(self) -> int:
        return len(self.rows)

    def source(self, index: int) -> Path | bytes:
        """The contents of the image file."""
        row = self.rows[index]
        if row is None or row["bytes"] is None:
            raise ValueError(f"every row must hold the bytes of an image; {self.name(index)} does not.")
        contents: bytes = row["bytes"]
        return contents

    def name(self, index: int) -> str:
        """Row and table."""
        return f"row {index} of {self.location}"


def load_parquet(
    folder: Path,
    *,
    name: str,
    channels: int = 3,
    image_size: int | None = None,
    test_part: str = "test",
    in_memory_bytes: int = IN_MEMORY_BYTES,
) -> ImageData:
    """A data set of parquet files such as train-00000-of-00002.parquet, with an image column and a label column.

    A split that takes more than `in_memory_bytes` when decoded is streamed, from an Arrow file that is made once beside the parquet
    files: rows of parquet files cannot be read in random order at a bearable pace.

    Args:
        folder: holds the files, at any depth.
        name: what to call the data set.
        channels: 1 for grey, 3 for colour.
        image_size: height and width: each image is scaled to cover it and cut to its centre. None takes those of the first image,
            up to 256.
        test_part: name of the part that is the test split.
        in_memory_bytes: largest size of a split in memory.

    Raises:
        ValueError: for files that are missing, damaged or of another kind, or an unreadable image.
    """
    files = find_parquet(folder)
    if lacking := [part for part in ("train", test_part) if part not in files]:
        raise ValueError(f"{folder} must hold parquet files of train and {test_part}; it lacks {' and '.join(lacking)}.")
    columns = {part: read_columns(files[part]) for part in ("train", test_part)}
    height, width = (image_size, image_size) if image_size else _first_size(files["train"], columns["train"])
    splits = {
        part: _load_split(files[part], columns[part], (channels, height, width), in_memory_bytes, folder / f"decoded-{part}.npz")
        for part in ("train", test_part)
    }
    most = max(int(split.labels.max()) for split in splits.values())
    class_names = columns["train"].class_names or tuple(str(label) for label in range(most + 1))
    return ImageData(name, splits["train"], splits[test_part], class_names, folder)


def _load_split(paths: Sequence[Path], columns: Columns, shape: Shape, in_memory_bytes: int, cache: Path) -> Split:
    num_rows = sum(open_parquet(path).metadata.num_rows for path in paths)
    if num_rows * int(np.prod(shape)) > in_memory_bytes:
        return Split(Pictures(_arrow_rows(paths, columns.image), shape), torch.from_numpy(_labels(paths, columns.label)))

    def build() -> Arrays:
        pictures = Pictures(_parquet_rows(paths, columns.image), shape)
        return {"images": pictures.to_memory().numpy(), "labels": _labels(paths, columns.label)}

    arrays = decoded(cache, paths, build, variant=f"{shape}, {columns.image}, {columns.label}")
    return Split(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]))


def _parquet_rows(paths: Sequence[Path], column: str) -> Encoded:
    """The rows, read into memory."""
    return Rows([row for path in paths for row in _read_column(path, column).to_pylist()], str(paths[0].parent))


def _arrow_rows(paths: Sequence[Path], column: str) -> Encoded:
    """The rows, in an Arrow file on disk."""
    hub = optional("datasets", install=HUB)
    folder = paths[0].parent / "arrow"
    cache = str(folder) if os.access(paths[0].parent, os.W_OK) else None
    try:
        table = hub.Dataset.from_parquet([str(path) for path in paths], cache_dir=cache, columns=[column])
    except (OSError, ValueError, hub.exceptions.DatasetsError) as error:
        raise ValueError(f"{paths[0].parent} must hold readable parquet files; reading them failed: {error}") from error
    return Rows(_Column(table.cast_column(column, hub.Image(decode=False)), column), str(paths[0].parent))


class _Column:
    """One column of a table of the package `datasets`, item by item."""

    def __init__(self, table: Any, column: str) -> None:
        self.table = table
        self.column = column

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.table[index][self.column]


def _labels(paths: Sequence[Path], column: str) -> npt.NDArray[np.int64]:
    labels = np.array([label for path in paths for label in _read_column(path, column).to_pylist()])
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers; the column {column} of {paths[0]} holds {labels.dtype}.")
    return labels.astype(np.int64)


def _read_column(path: Path, column: str) -> Any:
    arrow = optional("pyarrow", install=HUB)
    file = open_parquet(path)
    try:
        return file.read(columns=[column])[column]
    except (OSError, arrow.ArrowException) as error:
        raise ValueError(f"{path} must be a readable parquet file; reading it failed: {error}") from error


def _first_size(paths: Sequence[Path], columns: Columns) -> tuple[int, int]:
    rows = Rows(_read_column(paths[0], columns.image)[:1].to_pylist(), str(paths[0]))
    return image_size_of(rows.source(0), name=rows.name(0))
