"""Data sets of parquet files as they lie on the Hugging Face hub."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from guided_collapse.experiments.data.readers.decoded import Arrays, decoded
from guided_collapse.experiments.data.readers.parquet_files import Columns, find_parquet, open_parquet, read_columns
from guided_collapse.experiments.data.readers.pictures import Encoded, Pictures, Shape, fits_in_memory
from guided_collapse.experiments.data.split import ImageData, Split
from guided_collapse.lazy import optional


class Rows:
    """Encoded images in the rows of a table.

    Args:
        rows: item i has in its column a mapping with the `bytes` of image i, or None.
        column: the column of images.
        location: where the table is, for errors.
    """

    def __init__(self, rows: Any, column: str, location: str) -> None:
        self.rows, self.column, self.location = rows, column, location

    def __len__(self) -> int:
        return len(self.rows)

    def source(self, index: int) -> Path | bytes:
        """The contents of the image file."""
        image = self.rows[index][self.column]
        if image is None or image["bytes"] is None:
            raise ValueError(f"every row must hold the bytes of an image; {self.name(index)} does not.")
        contents: bytes = image["bytes"]
        return contents

    def name(self, index: int) -> str:
        """Row and table."""
        return f"row {index} of {self.location}"


def load_parquet(folder: Path, *, name: str, channels: int, image_size: int, test_part: str) -> ImageData:
    """A data set of parquet files such as train-00000-of-00002.parquet, with an image column and a label column.

    A split that does not fit in memory when decoded is streamed, from an Arrow file that is made once beside the parquet files:
    rows of parquet files cannot be read in random order at a bearable pace.

    Args:
        folder: holds the files, at any depth.
        name: what to call the data set.
        channels: 1 for gray, 3 for color.
        image_size: height and width: each image is scaled to cover it and cut to its center.
        test_part: name of the part that is the test split.

    Raises:
        ValueError: for files that are missing, damaged or of another kind, or an unreadable image.
    """
    files = find_parquet(folder)
    if lacking := [part for part in ("train", test_part) if part not in files]:
        raise ValueError(f"{folder} must hold parquet files of train and {test_part}; it lacks {' and '.join(lacking)}.")
    columns = {part: read_columns(files[part]) for part in ("train", test_part)}
    shape = (channels, image_size, image_size)
    splits = {part: _load_split(files[part], columns[part], shape, folder / f"decoded-{part}.npz") for part in ("train", test_part)}
    most = max(int(split.labels.max()) for split in splits.values())
    class_names = columns["train"].class_names or tuple(str(label) for label in range(most + 1))
    return ImageData(name, splits["train"], splits[test_part], class_names, folder)


def _load_split(paths: Sequence[Path], columns: Columns, shape: Shape, cache: Path) -> Split:
    num_rows = sum(open_parquet(path).metadata.num_rows for path in paths)
    if not fits_in_memory(num_rows, shape):
        return Split(Pictures(_arrow_rows(paths, columns.image), shape), torch.from_numpy(_labels(paths, columns.label)))

    def build() -> Arrays:
        pictures = Pictures(_parquet_rows(paths, columns.image), shape)
        return {"images": pictures.to_memory().numpy(), "labels": _labels(paths, columns.label)}

    arrays = decoded(cache, paths, build, variant=f"{shape}, {columns.image}, {columns.label}")
    return Split(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]))


def _parquet_rows(paths: Sequence[Path], column: str) -> Encoded:
    """The rows, read into memory."""
    return Rows([row for path in paths for row in _read(path, column).to_pylist()], column, str(paths[0].parent))


def _arrow_rows(paths: Sequence[Path], column: str) -> Encoded:
    """The rows, in an Arrow file on disk."""
    hub = optional("datasets", extra="hub")
    folder = paths[0].parent / "arrow"
    cache = str(folder) if os.access(paths[0].parent, os.W_OK) else None
    try:
        table = hub.Dataset.from_parquet([str(path) for path in paths], cache_dir=cache, columns=[column])
    except (OSError, ValueError, hub.exceptions.DatasetsError) as error:
        raise ValueError(f"{paths[0].parent} must hold readable parquet files; reading them failed: {error}") from error
    return Rows(table.cast_column(column, hub.Image(decode=False)), column, str(paths[0].parent))


def _labels(paths: Sequence[Path], column: str) -> npt.NDArray[np.int64]:
    labels = np.array([label for path in paths for label in _read(path, column)[column].to_pylist()])
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be integers; the column {column} of {paths[0]} holds {labels.dtype}.")
    return labels.astype(np.int64)


def _read(path: Path, column: str) -> Any:
    """The table of this column."""
    arrow = optional("pyarrow", extra="hub")
    file = open_parquet(path)
    try:
        return file.read(columns=[column])
    except (OSError, arrow.ArrowException) as error:
        raise ValueError(f"{path} must be a readable parquet file; reading it failed: {error}") from error
