"""What is said of a metric where it is declared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from guided_collapse.experiments.records.schema import Split

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
