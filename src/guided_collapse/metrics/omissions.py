"""What a measurement leaves out and why, and what a reader of its numbers should know."""

from guided_collapse.metrics.declaration import best_margin
from guided_collapse.metrics.declaration import Need
from guided_collapse.metrics.declared import entries
from guided_collapse.metrics.formulas.measured import Measured, has_simplex
from guided_collapse.metrics.formulas.samples import SampleCounts

REASONS: dict[Need, str] = {
    "test samples": "no test samples were given",
    "weight": "needs the classifier's weight",
    "samples": "needs a second pass over the samples, once the class means are known",
    "features together": "needs the features of a class together, which a stream does not keep",
    "simplex of weights": "needs feature_dim >= number of classes - 1, else no two frames have the same angles",
    "simplex of means": "needs feature_dim >= number of classes with samples - 1, else no two frames have the same angles",
    "best margin": "is not known for more than 2 feature_dim classes; it is at most 1",
}
"""Why a metric is left out; where it lacks several things, the first of them is said."""
LONGEST_LIST = 10


def left_out(measured: Measured, samples: SampleCounts | None, test_samples: SampleCounts | None) -> dict[str, str]:
    """The metrics of a result that are None, each with the reason."""
    sizes = len(measured.statistics.counts), measured.centered_class_means.shape[1]
    lacking: dict[Need, bool] = {
        "test samples": test_samples is None,
        "weight": measured.weight is None,
        "samples": samples is None,
        "features together": measured.statistics.numerical_ranks is None,
        "simplex of weights": not has_simplex(*sizes),
        "simplex of means": not has_simplex(*measured.centered_class_means.shape),
        "best margin": best_margin(*sizes) is None,
    }
    reasons: dict[str, str] = {}
    for entry in entries():
        need = next((need for need in REASONS if need in entry.needs and lacking[need]), None)
        if need is not None:
            reasons[entry.key] = REASONS[need]
            if entry.metric.each is not None and entry.split == "train":
                reasons[entry.metric.each] = REASONS[need]
    return reasons


def notes(
    measured: Measured, between_class_rank: int, samples: SampleCounts | None, test_samples: SampleCounts | None
) -> tuple[str, ...]:
    """Remarks on missing classes, degenerate means, and samples that tell nothing."""
    found = []
    statistics = measured.statistics
    num_present, feature_dim = measured.centered_class_means.shape
    if len(statistics.missing) > 0:
        found.append(
            f"no samples of class {class_list(tuple(statistics.missing.tolist()))}: no mean is made up for it; class means, and "
            f"weights compared with them, are those of the other {num_present} classes"
        )
    alone = int((statistics.counts == 1).sum())
    if alone > 0:
        found.append(
            f"{alone} classes have a single sample, which shows no scatter: NC1, CDNV, VCI and the trace ratio come out low"
        )
    most = min(num_present - 1, feature_dim)
    if between_class_rank == 0:
        found.append("all class means coincide: NC1 and what is said of their shape have no value")
    elif between_class_rank < most:
        found.append(
            f"the class means differ in only {between_class_rank} of {most} dimensions; NC1 counts the scatter in these alone"
        )
    for counts, name in ((samples, "samples"), (test_samples, "test samples")):
        undefined = 0 if counts is None or measured.weight is None else int(counts.num_samples) - len(counts.margins)
        if undefined > 0:
            found.append(
                f"{undefined} {name} have no cosine margin (at the global mean, or a weight at the mean weight) and are left out"
            )
    return tuple(found)


def class_list(classes: tuple[int, ...]) -> str:
    """Class indices as text, shortened when there are many."""
    shown = ", ".join(map(str, classes[:LONGEST_LIST]))
    return shown if len(classes) <= LONGEST_LIST else f"{shown} and {len(classes) - LONGEST_LIST} more"
