"""Converts plain-text formulas to MathML, which browsers typeset without scripts or extra fonts."""

import re

from markupsafe import Markup, escape

TOKEN = re.compile(
    r"sqrt\((?P<root>\w+)\)"
    r"|(?P<name>[A-Z](?![a-z])|[A-Za-z]+)(?:_(?P<sub>\{[^}]*\}|\w))?(?P<transposed>')?"
    r"|(?P<bar>\|)(?:_(?P<norm>F))?"
    r"|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<sign>!=|<=| > |\S)"
)
LETTERS = {"mu": "μ", "Pi": "Π", "pi": "π"}
FUNCTIONS = {"log", "softmax", "argmax", "argmin", "max", "min", "std", "avg", "tr", "pinv", "cos", "arccos", "logits", "label"}
SIGNS = {"!=": "≠", "<=": "≤", "-": "\u2212", "<": "⟨", ">": "⟩", " > ": ">"}


def mathml(formula: str) -> Markup:
    """Returns a formula such as "tr(S_W pinv(S_B))/C of h/|h|" as HTML.

    Words stay text and everything else becomes MathML. A line can break at a space.
    """
    parts: list[str] = []
    end = 0
    for found in TOKEN.finditer(formula):
        if found.start() > end or not parts:
            parts.append("")
        parts[-1] += _element(found)
        end = found.end()
    typeset = " ".join(part if part.isalpha() else f"<math>{part}</math>" for part in parts)
    return Markup('<span role="math" aria-label="{}">{}</span>').format(formula, Markup(typeset))


def _element(found: "re.Match[str]") -> str:
    name, sign = found["name"], found["sign"]
    if found["root"]:
        return f"<msqrt><mi>{found['root']}</mi></msqrt>"
    if name and len(name) > 1 and name not in LETTERS and name not in FUNCTIONS:
        return name
    if name:
        element = f"<mi>{LETTERS.get(name, name)}</mi>"
        if found["sub"]:
            inside = "".join(map(_element, TOKEN.finditer(found["sub"].strip("{}"))))
            element = f"<msub>{element}<mrow>{inside}</mrow></msub>"
        return f"<msup>{element}<mo>&#8868;</mo></msup>" if found["transposed"] else element
    if found["number"]:
        return f"<mn>{found['number']}</mn>"
    bar = '<mo stretchy="false">|</mo>'
    if found["bar"]:
        return f"<msub>{bar}<mi>F</mi></msub>" if found["norm"] else bar
    return f'<mo stretchy="false">{escape(SIGNS.get(sign, sign))}</mo>'
