"""Lazy imports of the public names of a package, and imports of optional dependencies."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the module-level `__getattr__` and `__dir__` of a package that imports its public names on first access.

    `package` is the `__name__` of the package; `homes` maps each public name to its module below `guided_collapse`. No submodule
    may have the name of a public object, because the submodule, once imported, would shadow the object.
    """

    def value_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"guided_collapse.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return value_of, lambda: sorted({*vars(sys.modules[package]), *homes})


def imported(place: str) -> Any:
    """Returns the class or function at "module:name"."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


class MissingPackageError(ImportError, ValueError):
    """Raised if an optional dependency is missing. It is also a `ValueError`, like every error that users can fix themselves."""


def optional(module: str, *, extra: str, package: str | None = None) -> Any:
    """Imports and returns a module of an optional dependency.

    Args:
        module: the full name of the module.
        extra: the extra of guided-collapse that installs the package.
        package: the package's name on PyPI, if it differs from the module's.

    Raises:
        MissingPackageError: if the import fails; the message says what to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = package or module.split(".")[0]
        raise MissingPackageError(
            f"this needs the package {package}, which cannot be imported: {error}. {how_to_install(package, extra=extra)}"
        ) from error


def how_to_install(package: str, *, extra: str) -> str:
    """Returns advice on how to install a missing package, valid for guided-collapse from an index and from a source folder."""
    return f"Install guided-collapse with its extra {extra}, as in pip install '.[{extra}]', or {package} alone."
