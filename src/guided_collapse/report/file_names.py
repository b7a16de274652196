"""Names of files from names of experiments, which may hold anything."""

import re
from collections.abc import Sequence

LONGEST = 80


def file_names(names: Sequence[str]) -> list[str]:
    """A name of letters, digits, dots and hyphens for each name, no two alike, even where capitals do not count."""
    taken: set[str] = set()
    result = []
    for name in names:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:LONGEST] or "experiment"
        candidate, number = base, 2
        while candidate.lower() in taken:
            candidate, number = f"{base}-{number}", number + 1
        taken.add(candidate.lower())
        result.append(candidate)
    return result
