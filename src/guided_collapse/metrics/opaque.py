"""A frozen result through torchmetrics, which takes dataclasses apart and fails on those it cannot write to."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Opaque(Generic[Value]):
    """Something that torchmetrics does not look into."""

    def __init__(self, value: Value) -> None:
        self.value = value


def unwrapped(wrap: Callable[[Callable[[], Any]], Callable[[], Any]], compute: Callable[[], Value]) -> Callable[[], Value]:
    """`wrap(compute)`, where `wrap` gets to see the value only as an opaque object.

    Args:
        wrap: adds caching and the exchange between processes, as `Metric._wrap_compute` does.
        compute: gives the value.
    """
    wrapped = wrap(lambda: Opaque(compute()))

    def unwrapping() -> Value:
        return wrapped().value

    return unwrapping
