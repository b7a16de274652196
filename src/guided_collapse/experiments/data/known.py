"""The named data sets: the tables of known.toml. Does not import torch."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from pydantic import TypeAdapter

from guided_collapse.experiments.errors import check_choice

FEATURE_FILES = (".npz", ".safetensors")


@dataclass(frozen=True)
class KnownData:
    """Facts about a data set.

    `archives` maps the file names of zip and tar archives to their addresses, which are empty for archives that are not
    published. The first archive found is read; a download tries the addresses in order.
    """

    channels: int  # 1 or 3
    image_size: int  # height and width as loaded
    num_classes: int
    num_train: int
    num_test: int  # for ImageNet, the validation images, whose labels are public
    mean: tuple[float, ...]  # of the training pixels, for each channel, with pixels from 0 to 1
    std: tuple[float, ...]
    hub_name: str | None = None  # the repository on the Hugging Face hub that holds it as parquet files
    test_part: str = "test"  # the part on the hub that serves as the test split
    class_names: tuple[str, ...] | None = None  # None if the files state them
    checksums: Mapping[str, str] = field(default_factory=dict)  # sha256 (64 digits) or md5 (32) of archives and unzipped IDX files
    archives: Mapping[str, str] = field(default_factory=dict)
    archive_reader: str = ""  # the key in `archives.READERS` of the function that reads the archives


_TABLES = tomllib.loads(resources.files("guided_collapse.experiments.data").joinpath("known.toml").read_text(encoding="utf-8"))
KNOWN = TypeAdapter(dict[str, KnownData]).validate_python(_TABLES)
"""Every named data set. Add your own here."""


def known_data(name: str) -> KnownData:
    """Returns the facts about a data set; raises ValueError for an unknown name, with the closest name and all legal names."""
    check_choice("the data set", name, tuple(KNOWN))
    return KNOWN[name]


def check_source(data: str) -> None:
    """Raises ValueError unless `data` is the name of a data set, a folder, or a file of features."""
    if data.endswith(FEATURE_FILES):
        if not Path(data).is_file():
            where = "" if Path(data).is_absolute() else f" in {Path.cwd()}"
            raise ValueError(f"features must be in a file; there is no file {data}{where}. Check the path.")
    elif data not in KNOWN and not (data.strip() and Path(data).is_dir()):
        raise ValueError(
            f"data must be a folder of images, a file of features ({', '.join(FEATURE_FILES)}), or one of {', '.join(KNOWN)}, "
            f"unconstrained; got {data!r}."
        )
