"""A count of batches on a terminal."""

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")


def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
    """The items, while a line on standard error says how many went by; silent where that is no terminal.

    Args:
        items: counted against their length, if they have one.
        what: the beginning of the line.
    """
    if not sys.stderr.isatty():
        yield from items
        return
    total = f"/{len(items)}" if isinstance(items, Sized) else ""
    for number, item in enumerate(items, start=1):
        sys.stderr.write(f"\r{what}: batch {number}{total}")
        sys.stderr.flush()
        yield item
    sys.stderr.write("\n")
