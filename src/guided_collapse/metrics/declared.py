"""The list of metrics, read from declared.toml: their names, meanings, requirements, and how they are shown.

Printed tables, missing values of a result, records of runs and the report are derived from this list. The module does not import
torch, so that reports start fast.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Literal

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
Need = Literal["weight", "samples", "test samples", "features together", "simplex of weights", "simplex of means", "best margin"]
Reference = Literal["loss_lower_bound", "ideal_margin"]


@dataclass(frozen=True)
class MetricDeclaration:
    """One metric: its name, its requirements, and how it is shown."""

    name: str  # in results and records
    label: str  # in the printed table
    meaning: str  # one sentence
    formula: str  # in plain text
    at_collapse: str = "0"  # value at collapse, in plain text
    section: str | None = None  # of the printed table; None for metrics that only runs measure, from the logits of their head
    needs: Sequence[Need] = ()  # in addition to class statistics
    splits: Sequence[Split] = ("train",)  # samples that the metric is measured on; in a result, the name for "test" is "test_..."
    recorded: bool = True  # whether runs record it
    charts: Mapping[Split, str] = field(default_factory=dict)  # chart titles in the report
    percent: bool = False  # whether it is a fraction to show in percent
    log: bool = False  # whether its chart starts on a logarithmic axis
    reference: Reference | None = None  # the value that theory predicts for training samples, a line in its chart
    occasional: bool = False  # whether it applies only to some runs, so that the report does not mention its absence


def metrics_of_results() -> Iterator[MetricDeclaration]:
    """Yields the metrics of a result; metrics of test samples, named "test_...", come last, in a separate section."""
    listed = [metric for metric in METRICS.values() if metric.section is not None]
    yield from listed
    for metric in listed:
        if "test" in metric.splits:
            needs: list[Need] = ["test samples" if need == "samples" else need for need in metric.needs]
            yield replace(metric, name=f"test_{metric.name}", section="test samples", needs=needs)


def recorded(split: Split) -> dict[str, str]:
    """Returns a dictionary that maps the names of a split's metrics in records to their names in results."""
    names = [name for name, metric in METRICS.items() if metric.section and metric.recorded and split in metric.splits]
    return {name: f"test_{name}" if split == "test" else name for name in names}


def best_margin(feature_dim: int, num_classes: int) -> float | None:
    """Returns the largest possible one-against-rest cosine margin of C classes in d dimensions, or None if it is unknown.

    This is the margin of frames whose unit rows are each as far as possible from the convex hull of the others. For C > d + 1, the
    margin is at most 1.
    """
    if num_classes <= feature_dim + 1:
        return num_classes / (num_classes - 1)  # simplex ETF
    if feature_dim == 1:
        return 0.0
    if feature_dim == 2:
        return 1 - math.cos(2 * math.pi / num_classes)  # regular polygon
    return 1.0 if num_classes <= 2 * feature_dim else None  # vectors of the orthoplex, e_k and -e_k


_TABLES = tomllib.loads(resources.files("guided_collapse.metrics").joinpath("declared.toml").read_text(encoding="utf-8"))
METRICS: Mapping[str, MetricDeclaration] = {name: MetricDeclaration(name, **fields) for name, fields in _TABLES.items()}
"""All metrics by name, in the order of declared.toml."""
LOSS, TOP1, NC1, NC1_NORMALIZED = (METRICS[name] for name in ("loss", "top1", "nc1", "nc1_normalized"))
NC2, NC2_MEANS, NC3, NC4, EQUINORM = (METRICS[name] for name in ("nc2", "nc2_means", "nc3", "nc4", "equinorm"))
MARGIN, BEST_MARGIN = METRICS["mean_cosine_margin"], METRICS["ideal_cosine_margin"]
