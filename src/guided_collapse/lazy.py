"""Imports that wait until they are needed: public names of a package, and optional packages."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package that imports its public names on first access.

    Args:
        package: the package's `__name__`.
        homes: maps each public name to its module below `guided_collapse`. No submodule may share a public name, or importing it
            would shadow that name.
    """

    def value_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"guided_collapse.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return value_of, names


def imported(place: str) -> Any:
    """Returns the class or function that "module:name" names."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


class MissingPackageError(ImportError, ValueError):
    """An optional package is missing. Also a ValueError, as every error that users can fix themselves."""


def optional(module: str, *, extra: str, package: str | None = None) -> Any:
    """Imports and returns a module of an optional package.

    Args:
        module: for example PIL.Image.
        extra: the extra of guided-collapse that installs the package.
        package: the package's name for pip, if it is not the first part of the module's name.

    Raises:
        MissingPackageError: if the import fails, with what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = package or module.split(".")[0]
        raise MissingPackageError(
            f"this needs the package {package}, which cannot be imported: {error}. {how_to_install(package, extra=extra)}"
        ) from error


def how_to_install(package: str, *, extra: str) -> str:
    """Returns what to do about a missing package, wherever guided-collapse was installed from."""
    return f"Run: pip install {package}, or install guided-collapse with its extra {extra}."
