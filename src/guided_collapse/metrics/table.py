"""A measurement as a table to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from guided_collapse.metrics.result import CollapseResult

SECTIONS = {
    "variability": {
        "nc1": "NC1, tr(S_W pinv(S_B))/C",
        "trace_ratio": "trace ratio, tr S_W / tr S_B",
        "cdnv": "class-distance normalised variance",
        "vci": "variability collapse index",
        "numerical_rank": "numerical rank of a class, mean",
    },
    "simplex frame": {
        "nc2": "NC2, weights to simplex ETF",
        "nc2_means": "NC2 of the class means",
        "nc3": "NC3, weights to class means",
        "etf_distance": "distance of the means to nearest ETF",
        "weight_equinorm": "equinorm of the weights",
        "mean_equinorm": "equinorm of the class means",
        "equinorm": "WH-equinorm, their difference",
        "weight_equiangularity": "equiangularity of the weights",
        "mean_equiangularity": "equiangularity of the class means",
        "bias_collapse": "bias collapse, |W mu_G + b|",
    },
    "samples": {
        "nc4": "NC4, disagreement with nearest centre",
        "accuracy": "accuracy",
        "nearest_centre_accuracy": "nearest-centre accuracy",
        "mean_cosine_margin": "cosine margin, mean",
        "ideal_cosine_margin": "cosine margin at a simplex ETF",
    },
    "test samples": {
        "test_nc4": "NC4, disagreement with nearest centre",
        "test_accuracy": "accuracy",
        "test_nearest_centre_accuracy": "nearest-centre accuracy",
        "test_mean_cosine_margin": "cosine margin, mean",
    },
}
LONGEST_LIST = 10


def collapse_table(result: CollapseResult) -> str:
    """The result as aligned lines of text: what was measured, the numbers by section, what was left out and why."""
    lines = _heading(result)
    for section, entries in SECTIONS.items():
        known = {label: getattr(result, name) for name, label in entries.items() if getattr(result, name) is not None}
        if known:
            lines += ["", section, *(f"  {label:<40}{value:>12.6g}" for label, value in known.items())]
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(name)
    if reasons:
        lines += ["", "left out", *(f"  {', '.join(names)}: {reason}" for reason, names in reasons.items())]
    if result.notes:
        lines += ["", "notes", *(f"  {note}" for note in result.notes)]
    return "\n".join(lines)


def _heading(result: CollapseResult) -> list[str]:
    present = result.num_classes - len(result.missing_classes)
    seen = [count for count in result.counts if count > 0]
    weights = "centred by their mean" if result.centre_weight else "as they are"
    return [
        f"neural collapse of {result.num_samples} samples in {result.feature_dim} dimensions",
        f"  classes with samples: {present} of {result.num_classes}, from {min(seen)} to {max(seen)} samples each",
        f"  global mean: of the {result.global_mean}; weights: {weights}",
    ]


def class_list(classes: tuple[int, ...]) -> str:
    """Class indices as text, shortened when there are many."""
    shown = ", ".join(map(str, classes[:LONGEST_LIST]))
    return shown if len(classes) <= LONGEST_LIST else f"{shown} and {len(classes) - LONGEST_LIST} more"
