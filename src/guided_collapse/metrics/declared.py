"""The one list of metrics: what each is called, what it says, what it takes, and how it is shown.

The printed table, what a result leaves out, what a run records and the report follow from it. It does not import torch, so reports
start fast.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
Need = Literal["weight", "samples", "test samples", "features together", "simplex of weights", "simplex of means", "best margin"]
Reference = Literal["loss_lower_bound", "ideal_margin"]


@dataclass(frozen=True)
class MetricDeclaration:
    """One metric: what it is called, what it requires, and how it is shown."""

    name: str  # in results and records
    label: str  # in the printed table
    section: str | None  # of the printed table; None if only a run can tell, from the head's own logits
    meaning: str  # what it measures, one sentence
    formula: str  # in plain text, as its value at collapse
    at_collapse: str = "0"
    needs: tuple[Need, ...] = ()  # besides class statistics
    splits: tuple[Split, ...] = ("train",)  # which samples it is measured on; on "test" a result calls it "test_..."
    recorded: bool = True  # by a run
    charts: Mapping[Split, str] = field(default_factory=dict)  # titles of its charts in the report
    percent: bool = False  # whether it is a fraction that is shown in percent
    log: bool = False  # whether its chart starts with a logarithmic axis
    reference: Reference | None = None  # the value that theory predicts for training samples, a line in its chart
    occasional: bool = False  # whether it applies to some runs only, so its absence needs no comment


class Entry(NamedTuple):
    """A metric of one split, as a result has it."""

    key: str  # Its name in the result
    metric: MetricDeclaration
    split: Split
    section: str  # Of the printed table
    needs: tuple[Need, ...]  # What it requires besides class statistics


def entries() -> Iterator[Entry]:
    """Yields every metric of a result, those of the test samples last."""
    listed = [metric for metric in METRICS.values() if metric.section is not None]
    for metric in listed:
        yield Entry(metric.name, metric, "train", metric.section or "", metric.needs)
    for metric in listed:
        if "test" in metric.splits:
            needs = tuple("test samples" if need == "samples" else need for need in metric.needs)
            yield Entry(f"test_{metric.name}", metric, "test", "test samples", needs)


def recorded(split: Split) -> dict[str, str]:
    """Maps the names of a split's metrics in a record to their names in a result."""
    return {entry.metric.name: entry.key for entry in entries() if entry.split == split and entry.metric.recorded}


def best_margin(feature_dim: int, num_classes: int) -> float | None:
    """The largest possible value of the smallest cosine margin of C classes in d dimensions; None if it is unknown.

    It is the margin of unit rows that are as far as possible from the convex hull of all others; for C > d + 1 at most 1.
    """
    if num_classes <= feature_dim + 1:
        return num_classes / (num_classes - 1)  # simplex ETF
    if feature_dim == 1:
        return 0.0
    if feature_dim == 2:
        return 1 - math.cos(2 * math.pi / num_classes)  # regular polygon
    return 1.0 if num_classes <= 2 * feature_dim else None  # vectors of the orthoplex, e_k and -e_k


# A table reads better in rows than with one argument per line.
# fmt: off
_M = MetricDeclaration
_ALL = (
    _M("loss", "loss", None,
       "Cross-entropy; no head of this kind with features of this norm can go below the lower bound.",
       "-log softmax(logits) of the own class, mean over samples", "the lower bound",
       splits=SPLITS, charts={"train": "Loss, train", "test": "Loss, test"}, reference="loss_lower_bound"),
    _M("top1", "top-1 accuracy", None, "Fraction of samples that the head classifies correctly.",
       "mean over samples of [argmax_j logits_j = label]", "1", splits=SPLITS, percent=True,
       charts={"train": "Top-1 accuracy, train (%)", "test": "Top-1 accuracy, test (%)"}),
    *(_M(f"top1_{part}", f"top-1 accuracy, classes with {part} samples", None,
         f"Accuracy on the third of the classes with {which} training samples, if these differ at least twofold.",
         "mean over samples of these classes of [argmax_j logits_j = label]", "1", splits=("test",), percent=True, occasional=True,
         charts={"test": f"Top-1 accuracy, test, classes with {part} samples (%)"})
      for part, which in (("many", "the most"), ("medium", "neither the most nor the fewest"), ("few", "the fewest"))),
    _M("nc1", "NC1, tr(S_W pinv(S_B))/C", "variability",
       "Scatter of samples around their class mean, relative to the scatter of the class means.",
       "tr(S_W pinv(S_B))/C", charts={"train": "NC1, within-class variability"}, log=True),
    _M("nc1_normalized", "NC1 of the normalized features", None,
       "NC1 of features on the unit sphere, which heads on spheres have anyway, so that it compares with theirs for every head.",
       "tr(S_W pinv(S_B))/C of h/|h|", charts={"train": "NC1 of the normalized features"}, log=True),
    _M("nc2", "NC2, weights to nearest frame", "frame",
       "How far the classifier's rows are from a simplex ETF, or from a tight frame for C > d+1.",
       "| WW'/|WW'|_F - Pi/sqrt(m) |_F", needs=("weight",), charts={"train": "NC2, weights to nearest frame"}, log=True),
    _M("nc2_means", "NC2 of the class means", "frame",
       "How far the centered class means are from a simplex ETF, or from a tight frame for C > d+1.",
       "| HH'/|HH'|_F - Pi/sqrt(m) |_F", charts={"train": "NC2 of the class means"}, log=True),
    _M("nc3", "NC3, weights to class means", "frame",
       "How far the classifier and the centered class means are from being dual to each other.",
       "| WH'/|WH'|_F - Pi/sqrt(m) |_F", needs=("weight",), charts={"train": "NC3, weights to class means"}, log=True),
    _M("nc4", "NC4, disagreement with nearest center", "samples",
       "Fraction of samples whose predicted class is not that of the nearest class mean of the training samples.",
       "mean over samples of [argmax_j <w_j, h> + b_j is not argmin_c |h - mu_c|]", needs=("weight", "samples"), splits=SPLITS,
       charts={"train": "NC4, disagreement, train", "test": "NC4, disagreement, test"}),
    _M("accuracy", "accuracy", "samples", "Fraction of samples that the classifier predicts correctly.",
       "mean over samples of [argmax_j <w_j, h> + b_j = label]", "1", needs=("weight", "samples"), splits=SPLITS, recorded=False),
    _M("bias_collapse", "bias collapse, |W mu_G + b|", "frame", "How far the bias is from canceling the global mean.",
       "|W mu_G + b|", needs=("weight",)),
    _M("equinorm", "WH-equinorm, difference of the next two", "frame",
       "Difference between the next two, how much norms vary for weights and for class means, as in the paper.",
       "| std_c |w_c| / avg_c |w_c| - std_c |mu_c - mu_G| / avg_c |mu_c - mu_G| |", needs=("weight",),
       charts={"train": "WH-equinorm"}, log=True),
    _M("weight_equinorm", "equinorm of the weights", "frame", "How much the norms of the classifier's rows vary.",
       "std_c |w_c| / avg_c |w_c|", needs=("weight",)),
    _M("mean_equinorm", "equinorm of the class means", "frame", "How much the norms of the centered class means vary.",
       "std_c |mu_c - mu_G| / avg_c |mu_c - mu_G|"),
    _M("weight_equiangularity", "equiangularity of the weights", "frame",
       "How far the angles between the classifier's rows are from those of a simplex ETF.",
       "mean over pairs of |cos(w_c, w_k) + 1/(C-1)|", needs=("weight", "simplex of weights")),
    _M("mean_equiangularity", "equiangularity of the class means", "frame",
       "How far the angles between the centered class means are from those of a simplex ETF.",
       "mean over pairs of |cos(mu_c - mu_G, mu_k - mu_G) + 1/(C-1)|", needs=("simplex of means",)),
    _M("weight_angle", "smallest angle of the weights, degrees", "frame",
       "The smallest angle between two of the classifier's rows, in degrees.", "min over pairs of arccos cos(w_c, w_k)",
       "arccos(-1/(C-1)), for C > d+1 at most ideal_angle", needs=("weight",)),
    _M("mean_angle", "smallest angle of the means, degrees", "frame",
       "The smallest angle between two of the centered class means, in degrees.",
       "min over pairs of arccos cos(mu_c - mu_G, mu_k - mu_G)", "arccos(-1/(C-1)), for C > d+1 at most ideal_angle"),
    _M("ideal_angle", "no smallest angle is larger than", "frame",
       "Upper bound of the smallest angle between C rows in d dimensions, in degrees.",
       "arccos(-1/(C-1)) for C <= d+1, 90 for C <= 2d, 360/C for d = 2, else arccos of Levenshtein's bound", "the same",
       recorded=False),
    _M("mean_cosine_margin", "cosine margin, mean", "samples",
       "How much closer samples are to their own class than to the next, in cosines; the mean over samples.",
       "cos_c - max_{j != c} cos_j, cos_j that of h - mu_G and w_j - w_G", "C/(C-1), for C > d+1 less",
       needs=("weight", "samples"), splits=SPLITS, charts={"train": "Mean cosine margin, train"}, reference="ideal_margin"),
    _M("class_margin", "one-against-rest margin, least class", "frame",
       "How much closer the class mean is to its own row than to the next, for the class with the smallest such margin.",
       "min_c (cos_c - max_{j != c} cos_j), cos_j that of mu_c - mu_G and w_j - w_G",
       "C/(C-1), for C > d+1 at most ideal_cosine_margin", needs=("weight",)),
    _M("ideal_cosine_margin", "cosine margin at the best frame", "samples",
       "The largest possible value of the smallest cosine margin over all classes.",
       "C/(C-1) for C <= d+1, 1 for C <= 2d, 1 - cos(2 pi/C) for d = 2", "the same", needs=("best margin",), recorded=False),
    _M("etf_distance", "distance of the means to nearest frame", "frame",
       "Squared distance of the centered class means, at unit norm, to the nearest simplex ETF or tight frame.",
       "2 - 2 |HP|_* / (|H|_F sqrt(m))"),
    _M("cdnv", "class-distance normalized variance", "variability",
       "Variance of two classes relative to the distance between their means, averaged over pairs.",
       "mean over pairs of (Var_c + Var_k) / (2 |mu_c - mu_k|^2)"),
    _M("vci", "variability collapse index", "variability",
       "Fraction of the total scatter, direction by direction, that class means do not explain.",
       "1 - tr(pinv(S_W + S_B) S_B) / min(d, C-1)"),
    _M("trace_ratio", "trace ratio, tr S_W / tr S_B", "variability",
       "Scatter of samples around their class mean, relative to that of the class means, summed over directions.",
       "tr S_W / tr S_B"),
    _M("numerical_rank", "numerical rank of a class, mean", "variability",
       "How many directions the features of a class fill; the mean over classes.", "|H_c|_*^2 / |H_c|_F^2", "1",
       needs=("features together",)),
    _M("nearest_center_accuracy", "nearest-center accuracy", "samples",
       "Fraction of samples whose nearest class mean is that of their own class.",
       "mean over samples of [argmin_c |h - mu_c| = label]", "1", needs=("samples",), splits=SPLITS),
)
# fmt: on
METRICS: dict[str, MetricDeclaration] = {metric.name: metric for metric in _ALL}
"""By name, in the order in which they are listed."""
LOSS, TOP1, NC1, NC1_NORMALIZED = (METRICS[name] for name in ("loss", "top1", "nc1", "nc1_normalized"))
NC2, NC2_MEANS, NC3, NC4, EQUINORM = (METRICS[name] for name in ("nc2", "nc2_means", "nc3", "nc4", "equinorm"))
MARGIN, BEST_MARGIN = METRICS["mean_cosine_margin"], METRICS["ideal_cosine_margin"]
