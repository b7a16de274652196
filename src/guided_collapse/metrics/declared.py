"""The metrics: what each is called, what it says, what it takes, and how it is shown.

This is the one place that describes them. The printed table, what a result leaves out and why, what a run records, the page, the
figures and the table in docs/measuring.md all follow from it. It imports no torch, so that a report need not wait for that.
"""

from collections.abc import Iterator

from guided_collapse.metrics.declaration import SPLITS, Entry, MetricDeclaration, Split

METRICS: dict[str, MetricDeclaration] = {}
"""By name, in the order in which they are listed."""


def declare(metric: MetricDeclaration) -> MetricDeclaration:
    """Adds a metric, and returns it.

    Raises:
        ValueError: for a name that another metric has.
    """
    if metric.name in METRICS:
        raise ValueError(f"a metric must have a name of its own; {metric.name!r} is declared already. Choose another.")
    METRICS[metric.name] = metric
    return metric


def entries() -> Iterator[Entry]:
    """All that a result of a measurement has, that of the test samples last."""
    for split in SPLITS:
        for metric in METRICS.values():
            if metric.section is not None and split in metric.splits:
                yield Entry(metric.name if split == "train" else f"test_{metric.name}", metric, split)


def recorded(split: Split) -> dict[str, str]:
    """The metrics of a split that a run takes from a result: name in the record to name in the result."""
    return {entry.metric.name: entry.key for entry in entries() if entry.split == split and entry.metric.recorded}


LOSS = declare(
    MetricDeclaration(
        name="loss",
        label="loss",
        section=None,
        meaning="Cross-entropy; the lower bound is what no head of this kind with features of this norm can go below.",
        formula="-log softmax(logits) of the own class, mean over samples",
        at_collapse="the lower bound",
        splits=SPLITS,
        charts={"train": "Loss, train", "test": "Loss, test"},
        reference="loss_lower_bound",
    )
)
TOP1 = declare(
    MetricDeclaration(
        name="top1",
        label="top-1 accuracy",
        section=None,
        meaning="Share of samples that the head predicts rightly.",
        formula="mean over samples of [argmax_j logits_j = label]",
        at_collapse="1",
        splits=SPLITS,
        charts={"train": "Top-1 accuracy, train (%)", "test": "Top-1 accuracy, test (%)"},
        percent=True,
    )
)


def _accuracy_of_a_third(name: str, part: str, which: str) -> None:
    declare(
        MetricDeclaration(
            name=name,
            label=f"top-1 accuracy, classes with {part} samples",
            section=None,
            meaning=f"Accuracy on the third of the classes with {which} training samples, where these differ twofold or more.",
            formula="mean over samples of these classes of [argmax_j logits_j = label]",
            at_collapse="1",
            splits=("test",),
            charts={"test": f"Top-1 accuracy, test, classes with {part} samples (%)"},
            percent=True,
            occasional=True,
        )
    )


_accuracy_of_a_third("top1_many", "many", "the most")
_accuracy_of_a_third("top1_medium", "medium", "neither the most nor the fewest")
_accuracy_of_a_third("top1_few", "few", "the fewest")
NC1 = declare(
    MetricDeclaration(
        name="nc1",
        label="NC1, tr(S_W pinv(S_B))/C",
        section="variability",
        meaning="Spread of samples around their class mean, against the spread of the class means.",
        formula="tr(S_W pinv(S_B))/C",
        at_collapse="0",
        charts={"train": "NC1, within-class variability"},
        log=True,
    )
)
NC2 = declare(
    MetricDeclaration(
        name="nc2",
        label="NC2, weights to nearest frame",
        section="frame",
        meaning="How far the classifier's rows are from a simplex ETF, or from a tight frame for C > d+1.",
        formula="| WW'/|WW'|_F - Pi/sqrt(m) |_F",
        at_collapse="0",
        needs=("weight",),
        charts={"train": "NC2, weights to nearest frame"},
        log=True,
    )
)
NC2_MEANS = declare(
    MetricDeclaration(
        name="nc2_means",
        label="NC2 of the class means",
        section="frame",
        meaning="How far the centered class means are from a simplex ETF, or from a tight frame for C > d+1.",
        formula="| HH'/|HH'|_F - Pi/sqrt(m) |_F",
        at_collapse="0",
        charts={"train": "NC2 of the class means"},
        log=True,
    )
)
NC3 = declare(
    MetricDeclaration(
        name="nc3",
        label="NC3, weights to class means",
        section="frame",
        meaning="How far the classifier and the centered class means are from being each other's dual.",
        formula="| WH'/|WH'|_F - Pi/sqrt(m) |_F",
        at_collapse="0",
        needs=("weight",),
        charts={"train": "NC3, weights to class means"},
        log=True,
    )
)
NC4 = declare(
    MetricDeclaration(
        name="nc4",
        label="NC4, disagreement with nearest center",
        section="samples",
        meaning="Share of samples whose predicted class is not that of the nearest class mean of the training samples.",
        formula="mean over samples of [argmax_j <w_j, h> + b_j is not argmin_c |h - mu_c|]",
        at_collapse="0",
        needs=("weight", "samples"),
        splits=SPLITS,
        charts={"train": "NC4, disagreement, train", "test": "NC4, disagreement, test"},
    )
)
declare(
    MetricDeclaration(
        name="accuracy",
        label="accuracy",
        section="samples",
        meaning="Share of samples that the classifier predicts rightly.",
        formula="mean over samples of [argmax_j <w_j, h> + b_j = label]",
        at_collapse="1",
        needs=("weight", "samples"),
        splits=SPLITS,
        recorded=False,
    )
)
declare(
    MetricDeclaration(
        name="bias_collapse",
        label="bias collapse, |W mu_G + b|",
        section="frame",
        meaning="How far the bias is from taking away the global mean.",
        formula="|W mu_G + b|",
        at_collapse="0",
        needs=("weight",),
    )
)
EQUINORM = declare(
    MetricDeclaration(
        name="equinorm",
        label="WH-equinorm, difference of the next two",
        section="frame",
        meaning="Difference in how equal the norms of weights and of class means are, as the paper has it.",
        formula="| std_c |w_c| / avg_c |w_c| - std_c |mu_c - mu_G| / avg_c |mu_c - mu_G| |",
        at_collapse="0",
        needs=("weight",),
        charts={"train": "WH-equinorm"},
        log=True,
    )
)
declare(
    MetricDeclaration(
        name="weight_equinorm",
        label="equinorm of the weights",
        section="frame",
        meaning="How much the norms of the classifier's rows differ.",
        formula="std_c |w_c| / avg_c |w_c|",
        at_collapse="0",
        needs=("weight",),
    )
)
declare(
    MetricDeclaration(
        name="mean_equinorm",
        label="equinorm of the class means",
        section="frame",
        meaning="How much the norms of the centered class means differ.",
        formula="std_c |mu_c - mu_G| / avg_c |mu_c - mu_G|",
        at_collapse="0",
    )
)
declare(
    MetricDeclaration(
        name="weight_equiangularity",
        label="equiangularity of the weights",
        section="frame",
        meaning="How far the angles between the classifier's rows are from those of a simplex ETF.",
        formula="mean over pairs of |cos(w_c, w_k) + 1/(C-1)|",
        at_collapse="0",
        needs=("weight", "simplex of weights"),
    )
)
declare(
    MetricDeclaration(
        name="mean_equiangularity",
        label="equiangularity of the class means",
        section="frame",
        meaning="How far the angles between the centered class means are from those of a simplex ETF.",
        formula="mean over pairs of |cos(mu_c - mu_G, mu_k - mu_G) + 1/(C-1)|",
        at_collapse="0",
        needs=("simplex of means",),
    )
)
declare(
    MetricDeclaration(
        name="weight_angle",
        label="smallest angle of the weights, degrees",
        section="frame",
        meaning="The smallest angle between two of the classifier's rows, in degrees.",
        formula="min over pairs of arccos cos(w_c, w_k)",
        at_collapse="arccos(-1/(C-1)), for C > d+1 at most ideal_angle",
        needs=("weight",),
    )
)
declare(
    MetricDeclaration(
        name="mean_angle",
        label="smallest angle of the means, degrees",
        section="frame",
        meaning="The smallest angle between two of the centered class means, in degrees.",
        formula="min over pairs of arccos cos(mu_c - mu_G, mu_k - mu_G)",
        at_collapse="arccos(-1/(C-1)), for C > d+1 at most ideal_angle",
    )
)
declare(
    MetricDeclaration(
        name="ideal_angle",
        label="no smallest angle is larger than",
        section="frame",
        meaning="What the smallest angle of C rows in d dimensions is at most, in degrees.",
        formula="arccos(-1/(C-1)) for C <= d+1, 90 for C <= 2d, 360/C for d = 2, else arccos of Levenshtein's bound",
        at_collapse="the same",
        recorded=False,
    )
)
MARGIN = declare(
    MetricDeclaration(
        name="mean_cosine_margin",
        label="cosine margin, mean",
        section="samples",
        meaning="How much nearer samples are to their own class than to the next, in cosines; the mean over samples.",
        formula="cos_c - max_{j != c} cos_j, cos_j that of h - mu_G and w_j - w_G",
        at_collapse="C/(C-1), for C > d+1 less",
        needs=("weight", "samples"),
        splits=SPLITS,
        charts={"train": "Mean cosine margin, train"},
        reference="ideal_margin",
        each="cosine_margins",
    )
)
declare(
    MetricDeclaration(
        name="class_margin",
        label="one-against-rest margin, least class",
        section="frame",
        meaning="How much nearer the class mean is to its own row than to the next, for the class where that is least.",
        formula="min_c (cos_c - max_{j != c} cos_j), cos_j that of mu_c - mu_G and w_j - w_G",
        at_collapse="C/(C-1), for C > d+1 at most ideal_cosine_margin",
        needs=("weight",),
    )
)
BEST_MARGIN = declare(
    MetricDeclaration(
        name="ideal_cosine_margin",
        label="cosine margin at the best frame",
        section="samples",
        meaning="The largest value that the least cosine margin of all classes can have.",
        formula="C/(C-1) for C <= d+1, 1 for C <= 2d, 1 - cos(2 pi/C) for d = 2",
        at_collapse="the same",
        needs=("best margin",),
        recorded=False,
    )
)
declare(
    MetricDeclaration(
        name="etf_distance",
        label="distance of the means to nearest frame",
        section="frame",
        meaning="Squared distance of the centered class means, at unit norm, to the nearest simplex ETF or tight frame.",
        formula="2 - 2 |HP|_* / (|H|_F sqrt(m))",
        at_collapse="0",
    )
)
declare(
    MetricDeclaration(
        name="cdnv",
        label="class-distance normalized variance",
        section="variability",
        meaning="Variance of two classes against the distance of their means, on average over pairs.",
        formula="mean over pairs of (Var_c + Var_k) / (2 |mu_c - mu_k|^2)",
        at_collapse="0",
    )
)
declare(
    MetricDeclaration(
        name="vci",
        label="variability collapse index",
        section="variability",
        meaning="Share of the total scatter, direction by direction, that class means do not explain.",
        formula="1 - tr(pinv(S_W + S_B) S_B) / min(d, C-1)",
        at_collapse="0",
    )
)
declare(
    MetricDeclaration(
        name="trace_ratio",
        label="trace ratio, tr S_W / tr S_B",
        section="variability",
        meaning="Spread of samples around their class mean, against that of the class means, without regard to directions.",
        formula="tr S_W / tr S_B",
        at_collapse="0",
    )
)
declare(
    MetricDeclaration(
        name="numerical_rank",
        label="numerical rank of a class, mean",
        section="variability",
        meaning="How many directions the features of a class fill; the mean over classes.",
        formula="|H_c|_*^2 / |H_c|_F^2",
        at_collapse="1",
        needs=("features together",),
        each="numerical_ranks",
    )
)
declare(
    MetricDeclaration(
        name="nearest_center_accuracy",
        label="nearest-center accuracy",
        section="samples",
        meaning="Share of samples that are nearest to the mean of their own class.",
        formula="mean over samples of [argmin_c |h - mu_c| = label]",
        at_collapse="1",
        needs=("samples",),
        splits=SPLITS,
    )
)
