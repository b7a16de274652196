"""The quantities that are shown over epochs, in the order in which they are shown."""

from dataclasses import dataclass
from typing import Literal

from guided_collapse.records.schema import Split

Reference = Literal["loss_lower_bound", "ideal_margin"]


@dataclass(frozen=True)
class Quantity:
    """One number of a measurement.

    Attributes:
        split: of which samples it is.
        name: in the record.
        title: for people.
        meaning: one sentence.
        percent: whether it is a fraction of 1 that is shown in per cent.
        log: whether its axis is logarithmic at first.
        reference: the value that theory gives.
    """

    split: Split
    name: str
    title: str
    meaning: str
    percent: bool = False
    log: bool = False
    reference: Reference | None = None

    @property
    def factor(self) -> float:
        """What recorded values are multiplied with to be shown."""
        return 100.0 if self.percent else 1.0


TRAIN_LOSS = Quantity(
    "train",
    "loss",
    "Loss, train",
    "Cross-entropy; the lower bound is what no classifier with unit weights and features of this norm can go below.",
    reference="loss_lower_bound",
)
TRAIN_TOP1 = Quantity("train", "top1", "Top-1 accuracy, train (%)", "Share of training samples predicted rightly.", percent=True)
TEST_TOP1 = Quantity("test", "top1", "Top-1 accuracy, test (%)", "Share of test samples predicted rightly.", percent=True)
TEST_LOSS = Quantity("test", "loss", "Loss, test", "Cross-entropy of the test samples.")
MARGIN = Quantity(
    "train",
    "mean_cosine_margin",
    "Mean cosine margin, train",
    "How much nearer samples are to their own class than to the next, in cosines; C/(C-1) at a simplex ETF.",
    reference="ideal_margin",
)
NC1 = Quantity("train", "nc1", "NC1, within-class variability", "tr(S_W pinv(S_B))/C; 0 at collapse.", log=True)
NC2 = Quantity("train", "nc2", "NC2, weights to simplex ETF", "0 for a classifier that is a simplex ETF.", log=True)
NC2_MEANS = Quantity("train", "nc2_means", "NC2 of the class means", "0 when the class means form a simplex ETF.", log=True)
NC3 = Quantity("train", "nc3", "NC3, weights to class means", "0 when classifier and class means are dual.", log=True)
NC4 = Quantity(
    "train", "nc4", "NC4, disagreement, train", "Share of samples whose prediction is not the class of the nearest class mean."
)
TEST_NC4 = Quantity("test", "nc4", "NC4, disagreement, test", "The same for test samples, with the class means of training.")
EQUINORM = Quantity(
    "train", "equinorm", "WH-equinorm", "Difference in how equal the norms of weights and of class means are.", log=True
)

QUANTITIES = (TRAIN_LOSS, TRAIN_TOP1, TEST_TOP1, TEST_LOSS, MARGIN, NC1, NC2, NC2_MEANS, NC3, NC4, TEST_NC4, EQUINORM)
