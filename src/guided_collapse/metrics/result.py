"""The result of a measurement: every metric, what was left out and why, and the printed table."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import torch
from torch import Tensor

from guided_collapse.geometry.bounds import largest_cosine_bound
from guided_collapse.geometry.simplex import center_classes, has_simplex_etf
from guided_collapse.metrics import formulas
from guided_collapse.metrics.declared import Need, best_margin, metrics_of_results
from guided_collapse.metrics.samples import Measured, SampleCounts
from guided_collapse.metrics.statistics import GlobalMean

LONGEST_LIST = 10


@dataclass(frozen=True, eq=False)
class CollapseResult:
    """All metrics of a measurement, as attributes; `print` and notebooks show them as a table.

    A metric is None if something it needs was not passed, with the reason in `left_out`. It is NaN or infinite if it is undefined,
    with the reason in `notes`. `test_...` are metrics of test samples, judged by the class means of the training samples. The docs
    page "How collapsed is a model?" explains every metric.

    Classes without samples have no mean. Metrics of class means leave such classes out, and `nc3` and `equinorm` also leave out
    their weights; metrics of weights alone, predictions and margins cover the weights of all classes.

    Example:
        >>> import torch
        >>> from guided_collapse import measure_collapse
        >>> result = measure_collapse(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 2, 0, 1, 2]))
        >>> result.nearest_center_accuracy, result.nc2, result.to_dict()["counts"]
        (1.0, None, [2, 2, 2])
    """

    nc1: float
    nc2: float | None
    nc2_means: float
    nc3: float | None
    nc4: float | None
    bias_collapse: float | None  # some code calls it NC4; 0 by construction for b = -W mu_G
    weight_equinorm: float | None
    mean_equinorm: float
    equinorm: float | None
    weight_equiangularity: float | None
    mean_equiangularity: float | None
    weight_angle: float | None
    mean_angle: float
    ideal_angle: float
    etf_distance: float
    class_margin: float | None
    mean_cosine_margin: float | None
    ideal_cosine_margin: float | None
    cosine_margins: Tensor | None  # of all samples that have a margin, sorted, float64
    cdnv: float
    vci: float
    trace_ratio: float
    numerical_rank: float | None
    numerical_ranks: tuple[float, ...] | None  # of each class with samples, in the order of the classes
    accuracy: float | None
    nearest_center_accuracy: float | None
    test_nc4: float | None
    test_accuracy: float | None
    test_nearest_center_accuracy: float | None
    test_mean_cosine_margin: float | None
    num_samples: int
    num_classes: int
    feature_dim: int
    counts: tuple[int, ...]  # number of samples of each class
    missing_classes: tuple[int, ...]  # classes without samples, which have no mean
    between_class_rank: int  # dimensions in which class means differ: min(d, C-1) unless class means are degenerate
    global_mean: GlobalMean  # as for `measure_collapse`
    center_weight: bool  # as for `measure_collapse`
    left_out: dict[str, str]  # the reason for every metric that is None
    notes: tuple[str, ...]  # remarks on the numbers

    def to_dict(self) -> dict[str, object]:
        """Returns all fields as plain values for JSON; NaN and infinity become None."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Returns the finite numbers by name, for loggers, with a prefix such as "train/"; lists are left out."""
        numbers = {name: value for name, value in self.to_dict().items() if isinstance(value, int | float)}
        return {f"{prefix}{name}": value for name, value in numbers.items() if not isinstance(value, bool)}

    def __str__(self) -> str:
        lines = self._heading()
        for section, rows in self._rows().items():
            lines += ["", section, *(f"  {label:<40}{value:>12}" for label, value, *_ in rows)]
        for section, remarks in self._remarks().items():
            lines += ["", section, *(f"  {remark}" for remark in remarks)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns an HTML table of all metrics and their values at collapse; the meaning of a metric is the tooltip of its name."""
        caption = "<br>".join(map(escape, self._heading()))
        parts = [f"<table><caption>{caption}</caption><tr><th></th><th>value</th><th>at collapse</th></tr>"]
        for section, rows in self._rows().items():
            parts.append(f'<tr><th colspan="3" align="left">{escape(section)}</th></tr>')
            for label, value, at_collapse, meaning in (map(escape, row) for row in rows):
                parts.append(f'<tr><td align="left" title="{meaning}">{label}</td><td>{value}</td><td>{at_collapse}</td></tr>')
        parts.append("</table>")
        for section, remarks in self._remarks().items():
            parts.append(f"<p>{escape(section)}</p><ul>{''.join(f'<li>{escape(remark)}</li>' for remark in remarks)}</ul>")
        return "\n".join(parts)

    def _heading(self) -> list[str]:
        seen = [count for count in self.counts if count > 0]
        weights = "centered by their mean" if self.center_weight else "as they are"
        return [
            f"neural collapse of {self.num_samples} samples in {self.feature_dim} dimensions",
            f"  classes with samples: {len(seen)} of {self.num_classes}, from {min(seen)} to {max(seen)} samples each",
            f"  global mean: of the {self.global_mean}; weights: {weights}",
        ]

    def _rows(self) -> dict[str, list[tuple[str, str, str, str]]]:
        """Returns rows of (label, value, value at collapse, meaning), by section."""
        sections: dict[str, list[tuple[str, str, str, str]]] = {}
        for metric in metrics_of_results():
            value = getattr(self, metric.name)
            if value is not None:
                row = (metric.label, f"{value:.6g}", metric.at_collapse, f"{metric.meaning} {metric.formula}")
                sections.setdefault(metric.section or "", []).append(row)
        return sections

    def _remarks(self) -> dict[str, list[str]]:
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            by_reason.setdefault(reason, []).append(name)
        found = {"left out": [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()], "notes": list(self.notes)}
        return {section: remarks for section, remarks in found.items() if remarks}


def _plain(value: object) -> object:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def collapse_result(
    measured: Measured, samples: SampleCounts | None = None, test_samples: SampleCounts | None = None
) -> CollapseResult:
    """Returns the result with every metric that can be computed from the statistics, the classifier and the counts of samples."""
    statistics, means, weight = measured.statistics, measured.centered_class_means, measured.weight
    feature_dim, num_classes = means.shape[1], len(statistics.counts)
    between = formulas.between_classes(means, torch.linalg.vector_norm(statistics.class_means, dim=1).max())
    cdnv = formulas.class_distance_normalized_variance(statistics, means)
    if len(between.values) == 0:
        # Only rounding errors are left, and their shape must not be mistaken for the shape of the means.
        means = torch.zeros_like(means)
    left_out = _left_out(measured, samples, test_samples)
    values: dict[str, Any] = dict.fromkeys(left_out) | {
        "nc1": formulas.variability_collapse(statistics, between),
        "nc2_means": formulas.frame_deviation(means),
        "mean_equinorm": formulas.norm_variation(means),
        "mean_angle": formulas.smallest_angle(means),
        "ideal_angle": math.degrees(math.acos(largest_cosine_bound(feature_dim, num_classes))),
        "etf_distance": formulas.nearest_frame_distance(means),
        "ideal_cosine_margin": best_margin(feature_dim, num_classes),
        "cdnv": cdnv,
        "vci": formulas.variability_collapse_index(statistics, between),
        "trace_ratio": float(statistics.class_scatter.sum() / statistics.num_samples / means.square().sum(dim=1).mean()),
    }
    if "mean_equiangularity" not in left_out:
        values["mean_equiangularity"] = formulas.angle_deviation(means)
    if statistics.numerical_ranks is not None:
        values["numerical_rank"] = float(statistics.numerical_ranks.mean())
        values["numerical_ranks"] = tuple(statistics.numerical_ranks.tolist())
    if weight is not None and measured.class_scores is not None:
        judged = center_classes(weight) if measured.center_weight else weight
        known = judged[statistics.present]
        values |= {
            "nc2": formulas.frame_deviation(judged),
            "nc3": formulas.frame_deviation(known, means),
            "bias_collapse": float(formulas.norm_of_any_size(measured.class_scores.offsets)),
            "weight_equinorm": formulas.norm_variation(judged),
            "equinorm": abs(formulas.norm_variation(known) - values["mean_equinorm"]),
            "weight_angle": formulas.smallest_angle(judged),
            "class_margin": formulas.least_margin(means, center_classes(weight), statistics.present),
        }
        if "weight_equiangularity" not in left_out:
            values["weight_equiangularity"] = formulas.angle_deviation(judged)
    for prefix, found in (("", samples), ("test_", test_samples)):
        if found is not None:
            number, center_correct, correct, disagreements = found.counts.tolist()
            values[f"{prefix}nearest_center_accuracy"] = center_correct / number
            if weight is not None:
                values[f"{prefix}nc4"] = disagreements / number
                values[f"{prefix}accuracy"] = correct / number
                # NaN if no sample has a margin.
                values[f"{prefix}mean_cosine_margin"] = float(found.margins.mean())
    if samples is not None and weight is not None:
        values["cosine_margins"] = samples.margins.sort().values
    return CollapseResult(
        **values,
        num_samples=statistics.num_samples,
        num_classes=num_classes,
        feature_dim=feature_dim,
        counts=tuple(statistics.counts.tolist()),
        missing_classes=tuple((statistics.counts == 0).nonzero().flatten().tolist()),
        between_class_rank=len(between.values),
        global_mean=measured.global_mean,
        center_weight=measured.center_weight,
        left_out=left_out,
        notes=tuple(_notes(measured, len(between.values), samples, test_samples)),
    )


def _left_out(measured: Measured, samples: SampleCounts | None, test_samples: SampleCounts | None) -> dict[str, str]:
    """Returns the reason for every metric that is None, by name."""
    (num_present, feature_dim), num_classes = measured.centered_class_means.shape, len(measured.statistics.counts)
    no_ranks, no_margin = measured.statistics.numerical_ranks is None, best_margin(feature_dim, num_classes) is None
    room = "needs feature_dim >= number of classes{} - 1, otherwise frames differ in their angles"
    # If several reasons apply to a metric, the first is given.
    lacking: dict[Need, tuple[bool, str]] = {
        "test samples": (test_samples is None, "no test samples were given"),
        "weight": (measured.weight is None, "needs the classifier's weight"),
        "samples": (samples is None, "needs a second pass over the samples, once the class means are known"),
        "features together": (no_ranks, "needs all features of a class at once: keep_features=True"),
        "simplex of weights": (not has_simplex_etf(feature_dim, num_classes), room.format("")),
        "simplex of means": (not has_simplex_etf(feature_dim, num_present), room.format(" with samples")),
        "best margin": (no_margin, "is not known for more than 2 feature_dim classes; it is at most 1"),
    }
    reasons: dict[str, str] = {}
    for metric in metrics_of_results():
        if found := [reason for need, (is_lacking, reason) in lacking.items() if is_lacking and need in metric.needs]:
            reasons[metric.name] = found[0]
    # A list is left out if its mean is left out.
    for name, mean in (("cosine_margins", "mean_cosine_margin"), ("numerical_ranks", "numerical_rank")):
        if mean in reasons:
            reasons[name] = reasons[mean]
    return reasons


def _notes(measured: Measured, rank: int, samples: SampleCounts | None, test_samples: SampleCounts | None) -> Iterator[str]:
    """Yields remarks on missing classes, degenerate means, and samples without a margin."""
    statistics = measured.statistics
    num_present, feature_dim = measured.centered_class_means.shape
    missing = (statistics.counts == 0).nonzero().flatten().tolist()
    if missing:
        more = f" and {len(missing) - LONGEST_LIST} more" if len(missing) > LONGEST_LIST else ""
        yield (
            f"no samples of class {', '.join(map(str, missing[:LONGEST_LIST]))}{more}: they have no mean; class means, and weights "
            f"compared with them, are those of the other {num_present} classes"
        )
    alone = int((statistics.counts == 1).sum())
    if alone > 0:
        yield f"{alone} classes have a single sample, which has no scatter: NC1, CDNV, VCI and the trace ratio come out too low"
    most = min(num_present - 1, feature_dim)
    if rank == 0:
        yield "all class means coincide: NC1 and the shape of the means are undefined"
    elif rank < most:
        yield f"the class means differ in only {rank} of {most} dimensions; NC1 counts scatter in these alone"
    for found, name in ((samples, "samples"), (test_samples, "test samples")):
        undefined = 0 if found is None or measured.weight is None else int(found.counts[0]) - len(found.margins)
        if undefined > 0:
            yield f"{undefined} {name} have no cosine margin (at the global mean, or a weight at the mean weight) and are left out"
