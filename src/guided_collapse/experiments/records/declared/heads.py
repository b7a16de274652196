"""The heads: what the command line, records, tables and the page call them, and how they are built.

This is the one place that names them. It imports nothing, so that a report, a list or a wrong flag need not wait for torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class HeadDeclaration:
    """One head.

    Attributes:
        name: on the command line and in records.
        label: in tables and on the page.
        letter: in the paper's notation of costs.
        style: the number of its color, dash and marker in `report/styles.py`.
        built_by: "module:class", called with feature_dim, num_classes, the options, and a generator.
        takes: fields of the configuration that are handed on.
        follows: keyword arguments that are another field of the configuration.
        options: other keyword arguments.
        stratified: whether the paper gives it stratified batches, as everybody gets in the fair protocol.
        centering: whether its features are centered always, or in the fair protocol only, or never; if not always, its class takes
            `center`.
    """

    name: str
    label: str
    letter: str
    style: int
    built_by: str
    takes: tuple[str, ...] = ("scale",)
    follows: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    stratified: bool = False
    centering: Literal["always", "fair", "never"] = "always"

    def centers(self, protocol: str) -> bool:
        """Whether its features are centered in that protocol, "fair" or "paper"."""
        return self.centering == "always" or self.centering == protocol


HEADS: dict[str, HeadDeclaration] = {}
"""By name, in the order in which they are shown."""


def declare(head: HeadDeclaration) -> None:
    """Adds a head."""
    HEADS[head.name] = head


_LINEAR, _FIXED, _NEAREST = (
    "guided_collapse.heads.linear:CosineHead",
    "guided_collapse.heads.fixed:FixedETFHead",
    "guided_collapse.heads.nearest:NearestETFHead",
)
_SOLVED = ("scale", "proximal_weight", "solver")

# What people use comes first, as they have it: with a bias where layers have one, on features as they are.
declare(
    HeadDeclaration(
        "linear",
        "nn.Linear",
        "Su",
        5,
        _LINEAR,
        takes=(),
        follows={"learned_bias": "affine"},
        options={"normalize": False},
        centering="never",
    )
)
declare(HeadDeclaration("cosine", "Standard", "S", 0, _LINEAR, centering="fair"))
declare(HeadDeclaration("fixed-etf", "Fixed ETF", "F", 1, _FIXED))
declare(HeadDeclaration("fixed-etf-random", "Fixed ETF, random", "Fr", 4, _FIXED, options={"direction": "random"}))
declare(HeadDeclaration("nearest-etf", "Implicit ETF", "I", 2, _NEAREST, takes=_SOLVED, stratified=True))
declare(
    HeadDeclaration(
        "nearest-etf-detached",
        "Implicit ETF, no gradient",
        "Id",
        3,
        _NEAREST,
        takes=_SOLVED,
        options={"implicit_gradient": False},
        stratified=True,
    )
)
declare(
    HeadDeclaration(
        "nearest-etf-lagged",
        "Implicit ETF, lagged",
        "Il",
        6,
        _NEAREST,
        takes=(*_SOLVED, "every"),
        options={"implicit_gradient": False, "lagged": True},
        stratified=True,
    )
)
