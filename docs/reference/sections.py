"""Renames the docstring section `Example:` to `Examples:`, the only name that mkdocstrings typesets as code."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section in every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object."""
        if obj.docstring is not None:
            lines = obj.docstring.value.split("\n")
            obj.docstring.value = "\n".join("Examples:" if line.strip() == "Example:" else line for line in lines)
