"""Imports that wait until they are needed: public names of a package, and optional packages."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package, given its `__name__`, that imports public names on first access.

    `homes` maps each public name to its module below `guided_collapse`. A submodule of the same name would shadow it once imported.
    """

    def value_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"guided_collapse.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return value_of, lambda: sorted({*vars(sys.modules[package]), *homes})


def imported(place: str) -> Any:
    """Returns the class or function that "module:name" names."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


class MissingPackageError(ImportError, ValueError):
    """An optional package is missing. Also a ValueError, as every error that users can fix themselves."""


def optional(module: str, *, extra: str, package: str | None = None) -> Any:
    """Imports and returns a module of an optional package; raises a MissingPackageError that says what to install.

    `extra` is the extra of guided-collapse that has the package, and `package` its name for pip, if the module's name differs.
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
