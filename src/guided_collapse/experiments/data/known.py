"""The data sets that have a name here: the tables of known.toml. Loads no torch."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class KnownData:
    """Facts about a data set.

    Attributes:
        channels: 1 or 3.
        image_size: height and width as loaded.
        num_classes: C.
        num_train: training images.
        num_test: test images; for ImageNet those of the validation part, whose labels are public.
        mean: of the training pixels, for each channel, with pixels from 0 to 1.
        std: their standard deviation.
        hub_name: the repository on the Hugging Face hub that holds it as parquet files, if there is one.
        test_part: the part on the hub that serves as the test split.
        class_names: None if the files state them.
        checksums: by file name, the sha256 (64 digits) or published md5 (32 digits) of archives and of decompressed IDX files.
        archives: the addresses of zip and tar archives that hold it, by file name; empty for one that is not published. The first
            one found is read, and the first one with an address is downloaded.
        archive_reader: the key in `archives.READERS` of the function that reads them.
    """

    channels: int
    image_size: int
    num_classes: int
    num_train: int
    num_test: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    hub_name: str | None = None
    test_part: str = "test"
    class_names: tuple[str, ...] | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    archives: Mapping[str, str] = field(default_factory=dict)
    archive_reader: str = ""


def _read(facts: dict[str, Any]) -> KnownData:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    return KnownData(**fields)


_TABLES = tomllib.loads(resources.files("guided_collapse.experiments.data").joinpath("known.toml").read_text(encoding="utf-8"))
KNOWN: dict[str, KnownData] = {name: _read(facts) for name, facts in _TABLES.items()}
"""Every named data set. Add your own here."""


def known_data(name: str) -> KnownData:
    """The facts about the data set of this name; ValueError for an unknown one, with the nearest one and all of them."""
    if name in KNOWN:
        return KNOWN[name]
    near = get_close_matches(name, KNOWN, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    raise ValueError(f"the data set must be one of {', '.join(KNOWN)}; got {name!r}.{guess}")


def check_source(data: str) -> None:
    """Raises ValueError for what is neither the name of a data set nor a folder."""
    if data not in KNOWN and not (data.strip() and Path(data).is_dir()):
        raise ValueError(
            f"data must be a folder of images or one of {', '.join(KNOWN)}, unconstrained; got {data!r}, which is neither."
        )
