"""How heads are named, ordered and told apart: by color, dash and marker, so that none is needed alone.

The colors are those of Okabe and Ito, made for color-blind readers, some darkened for a white ground.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from guided_collapse.experiments.records.declared.heads import HEADS

Dash = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]


@dataclass(frozen=True)
class HeadStyle:
    """A color on light and on dark ground, a dash of plotly and of matplotlib, a marker of plotly and of matplotlib."""

    light: str
    dark: str
    dash: str
    print_dash: Dash
    marker: str
    print_marker: str


STYLES = (
    HeadStyle("#0072b2", "#3d9bd6", "solid", "-", "circle", "o"),
    HeadStyle("#d55e00", "#e8762b", "dash", "--", "square", "s"),
    HeadStyle("#00805d", "#00b488", "longdash", (0, (8, 2)), "diamond", "D"),
    HeadStyle("#a3477f", "#cc79a7", "dashdot", "-.", "triangle-up", "^"),
    HeadStyle("#8f6a00", "#f0c02a", "dot", ":", "x", "X"),
    HeadStyle("#2f86b8", "#56b4e9", "longdashdot", (0, (8, 2, 1, 2)), "triangle-down", "v"),
    HeadStyle("#3c3c3c", "#e6e6e6", "5px,2px,1px,2px,1px,2px", (0, (5, 2, 1, 2, 1, 2)), "star", "*"),
)

# What costs are measured of beside heads.
BESIDE = {"paper-route": ("the paper's route", "P")}


def in_order(heads: Iterable[str]) -> list[str]:
    """Each head once: the known ones first, in their order, then the others by name."""
    found = set(heads)
    return [head for head in HEADS if head in found] + sorted(found - set(HEADS))


def styles_of(heads: Iterable[str]) -> dict[str, HeadStyle]:
    """A style for each head: always the same one for a known head, what is left for the others."""
    order = in_order(heads)
    taken = {HEADS[head].style for head in order if head in HEADS}
    free = [style for number, style in enumerate(STYLES) if number not in taken] or list(STYLES)
    others = [head for head in order if head not in HEADS]
    styles = {head: STYLES[HEADS[head].style % len(STYLES)] for head in order if head in HEADS}
    return styles | {head: free[number % len(free)] for number, head in enumerate(others)}


def label(head: str) -> str:
    """The name in print."""
    return HEADS[head].label if head in HEADS else BESIDE.get(head, (head, head))[0]


def letter(head: str) -> str:
    """The letter of the paper's notation S/F, S/B ...; the name of a head that has none."""
    return HEADS[head].letter if head in HEADS else BESIDE.get(head, (head, head))[1]
