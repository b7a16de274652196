"""What is said of a metric where it is declared."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
Need = Literal["weight", "samples", "test samples", "features together", "simplex of weights", "simplex of means", "best margin"]
Reference = Literal["loss_lower_bound", "ideal_margin"]


@dataclass(frozen=True)
class MetricDeclaration:
    """One metric.

    Attributes:
        name: in results and records.
        label: in the printed table.
        section: of the printed table; None for what only a run can tell, which has the head's own logits.
        meaning: what it measures, one sentence.
        formula: in plain text.
        at_collapse: its value there, in plain text.
        needs: what it cannot do without, beside class statistics.
        splits: of which samples it is measured. For "test" it has "test_" before its name in a result, and needs test samples
            where it else needs samples.
        recorded: whether a run records it.
        charts: by split, the title of its chart on the page; it has a chart for each.
        percent: whether it is a fraction of 1 that is shown in per cent.
        log: whether the axis of its chart is logarithmic at first.
        reference: the value that theory gives for training samples, as a line in its chart.
        occasional: whether it makes sense for some runs only, so that its absence needs no word.
        each: the field of a result that has the value of every sample or class, of which this is the mean.
        computed_by: "module:function", for a metric that is no field of `CollapseResult`: called with a `Measured` and the
            `SampleCounts` of the split, or None where these are not known, it returns a float.
    """

    name: str
    label: str
    section: str | None
    meaning: str
    formula: str
    at_collapse: str
    needs: tuple[Need, ...] = ()
    splits: tuple[Split, ...] = ("train",)
    recorded: bool = True
    charts: Mapping[Split, str] = field(default_factory=dict)
    percent: bool = False
    log: bool = False
    reference: Reference | None = None
    occasional: bool = False
    each: str | None = None
    computed_by: str | None = None


class Entry(NamedTuple):
    """A metric of one split, as a result has it."""

    key: str
    """Its name in the result."""
    metric: MetricDeclaration
    split: Split

    @property
    def section(self) -> str | None:
        """Of the printed table."""
        return self.metric.section if self.split == "train" else "test samples"

    @property
    def needs(self) -> frozenset[Need]:
        """What it cannot do without."""
        if self.split == "train":
            return frozenset(self.metric.needs)
        return frozenset("test samples" if need == "samples" else need for need in self.metric.needs)


def best_margin(num_classes: int, feature_dim: int) -> float | None:
    """The largest value that the least cosine margin of C classes in d dimensions can have; None where it is not known.

    It is that of C unit rows whose least distance from the convex hull of all others is as large as can be: C/(C-1) for
    C <= d + 1 (simplex ETF), 1 - cos(2 pi / C) for d = 2 (regular polygon), 0 for d = 1 and C > 2, and 1 for d + 1 < C <= 2d
    (vectors of the orthoplex, e_k and -e_k). For C > d + 1 it is at most 1: zero, or the point of the hull that is nearest to it,
    is in the hull of d + 1 rows at most, and any other row is no further than 1 from it.
    """
    if num_classes <= feature_dim + 1:
        return num_classes / (num_classes - 1)
    if feature_dim == 1:
        return 0.0
    if feature_dim == 2:
        return 1 - math.cos(2 * math.pi / num_classes)
    return 1.0 if num_classes <= 2 * feature_dim else None
