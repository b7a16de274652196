"""Turns the LaTeX of the site into MathML, which browsers typeset without scripts or the network."""

import html
import re
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

CONVERTER = LatexToMathML(fancy_error=False)

# What pymdownx.arithmatex leaves in place of $...$ and $$...$$.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs with the HTML of each page."""

    def typeset(found: re.Match[str]) -> str:
        element, latex = found.group(1), html.unescape(found.group(2)).strip()
        try:
            mathml = CONVERTER.convert_with_local_state(latex, displaystyle=element == "div")
        except LatexError as error:
            raise PluginError(f"{page.file.src_uri}: cannot typeset {latex!r}: {error}") from None
        return f'<{element} class="formula">{mathml}</{element}>'

    # Tables need \\| for |, also in code, where Python-Markdown keeps the backslash and GitHub does not.
    content = re.sub(r"<code>[^<]*</code>", lambda found: found[0].replace(r"\|", "|"), content)
    return FORMULA.sub(typeset, content)
