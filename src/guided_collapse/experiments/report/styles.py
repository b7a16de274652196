"""The order, labels and styles of heads. Color, dash pattern and marker each identify a head.

The colors are the color-blind safe ones of Okabe and Ito, some darkened for a white background.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from guided_collapse.experiments.heads import HEADS

Dash = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]


class HeadStyle(NamedTuple):
    """Colors on light and dark backgrounds; dashes for plotly, SVG and matplotlib; markers for plotly and matplotlib."""

    light: str
    dark: str
    dash: str
    lengths: str
    print_dash: Dash
    marker: str
    print_marker: str


STYLES = (
    HeadStyle("#0072b2", "#3d9bd6", "solid", "", "-", "circle", "o"),
    HeadStyle("#d55e00", "#e8762b", "dash", "7 4", "--", "square", "s"),
    HeadStyle("#00805d", "#00b488", "longdash", "11 4", (0, (8, 2)), "diamond", "D"),
    HeadStyle("#a3477f", "#cc79a7", "dashdot", "8 3 2 3", "-.", "triangle-up", "^"),
    HeadStyle("#8f6a00", "#f0c02a", "dot", "2 3", ":", "x", "X"),
    HeadStyle("#3c3c3c", "#e6e6e6", "5px,2px,1px,2px,1px,2px", "5 2 1 2 1 2", (0, (5, 2, 1, 2, 1, 2)), "star", "*"),
    HeadStyle("#9e2a2b", "#ef6f6c", "3px,3px,9px,3px", "3 3 9 3", (0, (3, 3, 9, 3)), "hexagon", "h"),
    HeadStyle("#2f86b8", "#56b4e9", "longdashdot", "11 3 2 3", (0, (8, 2, 1, 2)), "triangle-down", "v"),
    HeadStyle("#5b7300", "#a9c72e", "9px,2px,2px,2px", "9 2 2 2", (0, (9, 2, 2, 2)), "pentagon", "p"),
)


def in_order(heads: Iterable[str]) -> list[str]:
    """Returns unique heads: known ones in declared order, then the rest by name."""
    found = set(heads)
    return [head for head in HEADS if head in found] + sorted(found - set(HEADS))


def styles_of(heads: Iterable[str]) -> dict[str, HeadStyle]:
    """Returns a style for each head, in order: a known head always has its own style, and others get the remaining styles."""
    order = in_order(heads)
    known = {head: STYLES[HEADS[head].style % len(STYLES)] for head in order if head in HEADS}
    free = [style for style in STYLES if style not in known.values()] or list(STYLES)
    others = (head for head in order if head not in HEADS)
    return known | {head: free[place % len(free)] for place, head in enumerate(others)}


def label(head: str) -> str:
    """Returns the display name of a head; for unknown heads, the name itself."""
    return HEADS[head].label if head in HEADS else head
