"""Packages that only some data sets need."""

import importlib
from typing import Any


def optional(module: str, *, install: str) -> Any:
    """The module of a package that need not be installed.

    Args:
        module: its name, for example PIL.Image.
        install: what to install when it is not there, for example guided-collapse[experiments].

    Raises:
        ValueError: if it is not there, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ValueError(
            f"this data needs the package {package}, which cannot be imported: {error}. Run: pip install '{install}'"
        ) from error
