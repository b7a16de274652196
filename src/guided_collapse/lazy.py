"""What is imported when first asked for: the public names of a package, and what a declaration names."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its public names when they are first asked for.

    Args:
        package: its `__name__`.
        homes: for each public name the module it is in, below `guided_collapse`. No module in the package itself may have that
            name, or whether the name means it would depend on who came first.
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
    """The class or function that "module:name" names."""
    module, name = place.split(":")
    return getattr(import_module(module), name)
