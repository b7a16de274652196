"""The table of heads, from a head's name to its class, options and label.

Does not import torch, so that the command line starts fast.
To add a head, add a row to the table below: the command line, records, tables and figures all read the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from guided_collapse.lazy import imported

if TYPE_CHECKING:
    import torch
    from torch import nn

    from guided_collapse.experiments.configuration import Configuration
    from guided_collapse.heads.head import Head


@dataclass(frozen=True)
class HeadDeclaration:
    """How to build a head, and how the command line and reports show it."""

    name: str  # on the command line and in records
    label: str  # in tables and figures
    about: str  # a one-line description
    style: int  # index of its color, dash pattern and marker in figures
    built_by: str  # "module:class" or "module:function", called with feature_dim, num_classes, the options, and a generator
    takes: tuple[str, ...] = ("scale",)  # fields of the configuration that are passed to `built_by`
    options: Mapping[str, Any] = field(default_factory=dict)  # other keyword arguments of `built_by`
    stratified: bool = False  # True if the paper trains it with stratified batches, which every head gets in the fair protocol
    learned: bool = False  # True if it has parameters
    centering: Literal["always", "fair", "never"] = "always"  # when it centers features; if "fair", `built_by` takes `center`

    def centers(self, protocol: str) -> bool:
        """Returns whether the head centers features in that protocol, "fair" or "paper"."""
        return self.centering in ("always", protocol)


_HERE = "guided_collapse.experiments.heads"
_LINEAR: Mapping[str, Any] = {"built_by": f"{_HERE}:linear_layer", "takes": ("affine",), "centering": "never", "learned": True}
_COSINE: Mapping[str, Any] = {"built_by": "guided_collapse.heads.cosine:CosineHead", "centering": "fair", "learned": True}
_FREE: Mapping[str, Any] = {"normalize_weight": False}
_FIXED = "guided_collapse.heads.fixed:FixedETFHead"
_RANDOM: Mapping[str, Any] = {"direction": "random"}
_NEAREST: Mapping[str, Any] = {
    "built_by": "guided_collapse.heads.nearest:NearestETFHead",
    "takes": ("scale", "proximal_weight", "solver"),
    "stratified": True,
}
_DETACHED: Mapping[str, Any] = {**_NEAREST, "options": {"implicit_gradient": False}}
_LAGGED: Mapping[str, Any] = {
    **_NEAREST,
    "takes": (*_NEAREST["takes"], "every"),
    "options": {"implicit_gradient": False, "lagged": True},
}
_ANCHORED: Mapping[str, Any] = {"built_by": f"{_HERE}:anchored_head", "takes": ("scale", "frame"), "centering": "never"}

_DECLARED = (
    HeadDeclaration("linear", "nn.Linear", "torch.nn.Linear on the raw features: the usual last layer", 5, **_LINEAR),
    HeadDeclaration("cosine", "Cosine", "learned: cosines of features and weight rows, times a scale", 0, **_COSINE),
    HeadDeclaration(
        "sphere-linear", "Linear on a sphere", "learned: nn.Linear on centered features of equal norm", 8, **_COSINE, options=_FREE
    ),
    HeadDeclaration("fixed-etf", "Fixed ETF", "a simplex ETF that never moves", 1, _FIXED),
    HeadDeclaration("fixed-etf-random", "Fixed ETF, random", "the same, in a random orientation", 4, _FIXED, options=_RANDOM),
    HeadDeclaration(
        "nearest-etf", "Nearest ETF", "at every step the simplex ETF nearest to the class means: the paper's head", 2, **_NEAREST
    ),
    HeadDeclaration(
        "nearest-etf-detached", "Nearest ETF, detached", "the same, without the gradient through the nearest frame", 3, **_DETACHED
    ),
    HeadDeclaration(
        "nearest-etf-lagged", "Nearest ETF, lagged", "the same, with the frame of earlier steps; cheaper with --every", 6, **_LAGGED
    ),
    HeadDeclaration("anchored", "Anchored", "rows frozen at an older model's class means, for upgrade only", 7, **_ANCHORED),
)
HEADS: dict[str, HeadDeclaration] = {head.name: head for head in _DECLARED}
"""Every head by name, in display order."""


def build_head(
    configuration: "Configuration", feature_dim: int, num_classes: int, generator: "torch.Generator"
) -> "Head | nn.Linear":
    """Returns the head that the configuration names; `generator` is the source of its initial weight or random direction."""
    declared = HEADS[configuration.head]
    options = {name: getattr(configuration, name) for name in declared.takes} | dict(declared.options)
    if declared.centering == "fair":
        options["center"] = declared.centers(configuration.protocol)
    head: Head | nn.Linear = imported(declared.built_by)(feature_dim, num_classes, **options, generator=generator)
    return head


def anchored_head(feature_dim: int, num_classes: int, *, scale: float, frame: float, generator: "torch.Generator") -> "Head":
    """Returns an AnchoredHead of these sizes; a state dict or `upgrade.anchors`, which applies `frame`, provides its rows later."""
    from guided_collapse.heads.anchored import AnchoredHead

    return AnchoredHead.from_config(feature_dim=feature_dim, num_classes=num_classes, scale=scale, centered=False)


def linear_layer(feature_dim: int, num_classes: int, *, affine: bool, generator: "torch.Generator") -> "nn.Linear":
    """Returns an nn.Linear with its usual initial weight, drawn from the generator; `affine` adds a bias, initially zero."""
    from torch import nn

    layer = nn.Linear(feature_dim, num_classes, bias=affine)
    nn.init.uniform_(layer.weight, -(feature_dim**-0.5), feature_dim**-0.5, generator=generator)
    if affine:
        nn.init.zeros_(layer.bias)
    return layer
