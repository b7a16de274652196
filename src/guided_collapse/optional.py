"""Packages that only some uses need."""

from importlib import import_module
from typing import Any


class MissingPackageError(ImportError, ValueError):
    """A package is missing: an ImportError, and a ValueError as is all that a user can put right."""


def optional(module: str, *, extra: str, package: str | None = None) -> Any:
    """The module of a package that need not be installed.

    Args:
        module: its name, for example PIL.Image.
        extra: the extra of guided-collapse that the package comes with.
        package: what pip calls the package, where that is not the first part of the module's name.

    Raises:
        MissingPackageError: if it cannot be imported, with what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = package or module.split(".")[0]
        raise MissingPackageError(
            f"this needs the package {package}, which cannot be imported: {error}. {how_to_install(package, extra=extra)}"
        ) from error


def how_to_install(package: str, *, extra: str) -> str:
    """What to do about a missing package; it holds wherever guided-collapse was installed from."""
    return f"Run: pip install {package}, or install guided-collapse with its extra {extra}."
