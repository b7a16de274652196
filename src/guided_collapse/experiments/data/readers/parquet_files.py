"""Parquet files as they lie on the Hugging Face hub: which are there, and what is in them."""

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from guided_collapse.lazy import optional

LABEL_COLUMNS = ("fine_label", "label", "labels")  # CIFAR-100 has a coarse_label too


class Columns(NamedTuple):
    """Where images and labels are.

    Attributes:
        image: column of encoded images.
        label: column of class indices.
        class_names: None if the files do not say.
    """

    image: str
    label: str
    class_names: tuple[str, ...] | None


def find_parquet(folder: Path) -> dict[str, list[Path]]:
    """The files of each part (train, validation, test, ...), in order, anywhere below the folder.

    The part is what the name begins with, as in train-00000-of-00002.parquet, or else the name of the folder, as in
    train/0000.parquet.

    Raises:
        ValueError: if files of one part are missing, or lie in more than one folder.
    """
    parts: dict[str, list[Path]] = defaultdict(list)
    totals: dict[str, set[int]] = defaultdict(set)
    for path in sorted(folder.rglob("*.parquet")):
        numbered = re.fullmatch(r"(\w+?)-(\d+)-of-(\d+)(-\w+)?", path.stem)
        part = numbered[1] if numbered else path.parent.name if path.stem.isdigit() else path.stem
        parts[part].append(path)
        if numbered:
            totals[part].add(int(numbered[3]))
    for part, paths in parts.items():
        folders = {path.parent for path in paths}
        if len(folders) > 1:
            raise ValueError(
                f"the files of {part} must be in one folder; {folder} has some in {', '.join(map(str, sorted(folders)))}."
            )
        if totals[part] and totals[part] != {len(paths)}:
            raise ValueError(f"{folder} must hold all files of {part}; it has {len(paths)} of {max(totals[part])}. Get the others.")
    return dict(parts)


def read_columns(paths: Sequence[Path]) -> Columns:
    """Where images and labels are in these files, which must all say the same.

    Raises:
        ValueError: for a file that is damaged or differs, or without a column of images or of labels.
    """
    schema = None
    for path in paths:
        found = open_parquet(path).schema_arrow
        if schema is not None and not found.equals(schema):
            raise ValueError(f"all files of a part must have the same columns; {path} differs from {paths[0]}.")
        schema = found
    features = optional("datasets", extra="hub").Features.from_arrow_schema(schema)
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image" or _holds_bytes(feature)]
    labels = [name for name in LABEL_COLUMNS if name in features]
    if not images or not labels:
        raise ValueError(
            f"{paths[0]} must have a column of images and a column of labels ({', '.join(LABEL_COLUMNS)}); "
            f"it has {', '.join(features)}."
        )
    names = tuple(features[labels[0]].names) if type(features[labels[0]]).__name__ == "ClassLabel" else None
    return Columns(images[0], labels[0], names)


def open_parquet(path: Path) -> Any:
    """The file, with its footer read.

    Raises:
        ValueError: for a file that cannot be read, with its name.
    """
    arrow, parquet = optional("pyarrow", extra="hub"), optional("pyarrow.parquet", extra="hub")
    try:
        if not path.is_file():  # reading a pipe would wait for ever
            raise OSError("it is not a regular file")
        return parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise ValueError(f"{path} must be a readable parquet file; reading it failed: {error}") from error


def _holds_bytes(feature: object) -> bool:
    return isinstance(feature, dict) and "bytes" in feature
