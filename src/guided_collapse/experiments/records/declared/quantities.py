"""The quantities that are shown over epochs, in the order in which they are shown."""

from dataclasses import dataclass

from guided_collapse.metrics import declared as metrics
from guided_collapse.experiments.records.schema import Split
from guided_collapse.metrics.declaration import MetricDeclaration, Reference


@dataclass(frozen=True)
class Quantity:
    """A metric of one split.

    Attributes:
        split: of which samples it is.
        name: in the record.
        title: for people.
        meaning: what it measures, the formula, and the value at collapse.
        percent: whether it is a fraction of 1 that is shown in per cent.
        log: whether its axis is logarithmic at first.
        reference: the value that theory gives.
        occasional: whether it makes sense for some runs only.
    """

    split: Split
    name: str
    title: str
    meaning: str
    percent: bool
    log: bool
    reference: Reference | None
    occasional: bool

    @property
    def factor(self) -> float:
        """What recorded values are multiplied with to be shown."""
        return 100.0 if self.percent else 1.0


def _quantity(metric: MetricDeclaration, split: Split = "train") -> Quantity:
    return Quantity(
        split=split,
        name=metric.name,
        title=metric.charts[split],
        meaning=f"{metric.meaning} {metric.formula}; {metric.at_collapse} at collapse.",
        percent=metric.percent,
        log=metric.log,
        reference=metric.reference if split == "train" else None,
        occasional=metric.occasional,
    )


TRAIN_LOSS = _quantity(metrics.LOSS)
TRAIN_TOP1 = _quantity(metrics.TOP1)
TEST_TOP1 = _quantity(metrics.TOP1, "test")
TEST_LOSS = _quantity(metrics.LOSS, "test")
MARGIN = _quantity(metrics.MARGIN)
NC1 = _quantity(metrics.NC1)
NC2 = _quantity(metrics.NC2)
NC2_MEANS = _quantity(metrics.NC2_MEANS)
NC3 = _quantity(metrics.NC3)
NC4 = _quantity(metrics.NC4)
TEST_NC4 = _quantity(metrics.NC4, "test")
EQUINORM = _quantity(metrics.EQUINORM)

_FIRST = (TRAIN_LOSS, TRAIN_TOP1, TEST_TOP1, TEST_LOSS, MARGIN, NC1, NC2, NC2_MEANS, NC3, NC4, TEST_NC4, EQUINORM)
_ALL = (_quantity(metric, split) for metric in metrics.METRICS.values() for split in metric.charts)
QUANTITIES = (*_FIRST, *(quantity for quantity in _ALL if quantity not in _FIRST))
