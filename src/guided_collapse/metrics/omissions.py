"""What a measurement leaves out and why, and what a reader of its numbers should know."""

from guided_collapse.metrics.formulas.measured import Measured
from guided_collapse.metrics.formulas.samples import SampleCounts
from guided_collapse.metrics.table import class_list

WEIGHT = ("nc2", "nc3", "bias_collapse", "weight_equinorm", "equinorm", "weight_equiangularity")
PREDICTIONS = ("nc4", "accuracy", "mean_cosine_margin", "cosine_margins")
TEST_PREDICTIONS = ("test_nc4", "test_accuracy", "test_mean_cosine_margin")


def left_out(measured: Measured, samples: SampleCounts | None, test_samples: SampleCounts | None) -> dict[str, str]:
    """The fields of a result that are None, each with the reason."""
    reasons: dict[str, str] = {}
    if measured.weight is None:
        reasons |= dict.fromkeys((*WEIGHT, *PREDICTIONS), "needs the classifier's weight")
    if samples is None:
        second_pass = "needs a second pass over the samples, once the class means are known"
        reasons = dict.fromkeys((*PREDICTIONS, "nearest_centre_accuracy"), second_pass) | reasons
    if measured.statistics.numerical_ranks is None:
        together = "needs the features of a class together, which a stream does not keep"
        reasons |= dict.fromkeys(("numerical_rank", "numerical_ranks"), together)
    if not frame_exists(measured):
        reasons["etf_distance"] = "needs feature_dim >= number of classes - 1, else there is no simplex ETF"
    if test_samples is None:
        reasons |= dict.fromkeys((*TEST_PREDICTIONS, "test_nearest_centre_accuracy"), "no test samples were given")
    elif measured.weight is None:
        reasons |= dict.fromkeys(TEST_PREDICTIONS, "needs the classifier's weight")
    return reasons


def frame_exists(measured: Measured) -> bool:
    """Whether there is a simplex ETF of as many classes as have samples in this many dimensions."""
    num_present, feature_dim = measured.centred_class_means.shape
    return feature_dim >= num_present - 1


def notes(
    measured: Measured, between_class_rank: int, samples: SampleCounts | None, test_samples: SampleCounts | None
) -> tuple[str, ...]:
    """Remarks on missing classes, degenerate means, and samples that tell nothing."""
    found = []
    statistics = measured.statistics
    num_present, feature_dim = measured.centred_class_means.shape
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
