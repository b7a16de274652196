"""Docstrings here say `Example:`; the reader of the reference knows the section by the name `Examples:` alone."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Gives the section the name by which it is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that was read."""
        if obj.docstring is not None:
            lines = obj.docstring.value.split("\n")
            obj.docstring.value = "\n".join("Examples:" if line.strip() == "Example:" else line for line in lines)
