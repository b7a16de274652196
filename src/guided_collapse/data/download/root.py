"""Where data sets live."""

import os
from pathlib import Path

from guided_collapse.errors import RequestError

VARIABLE = "GUIDED_COLLAPSE_DATA"


class MissingData(RequestError):  # noqa: N818  # it is a state of the disk, named as such
    """A data set is not where it should be; the message has the command that gets it."""


def data_root() -> Path:
    """The folder with one folder for each data set: $GUIDED_COLLAPSE_DATA, or `guided-collapse` in the user's cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "guided-collapse"


def data_folder(name: str, root: Path | None) -> Path:
    """The folder of one data set under `root`; None takes `data_root()`."""
    return (root if root is not None else data_root()) / name
