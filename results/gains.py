"""What the gain over a linear layer goes with, over all settings with many classes: rank correlations from `results/records`."""

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from guided_collapse.experiments.records.declared.quantities import TEST_LOSS, TEST_TOP1, TRAIN_TOP1, Quantity
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.styles import label
from guided_collapse.experiments.report.summaries import at_epoch
from results.many_classes import LINEAR, NEAREST, images_of_each_class, lagged_head, points_ahead


def goes_with(experiments: Sequence[Experiment]) -> list[list[str]]:
    """Spearman's rank correlation of each head's median gain with facts about the setting: rows with headings."""
    heads: dict[str, Callable[[Experiment], str]] = {
        label("cosine"): lambda _: "cosine",
        label("fixed-etf"): lambda _: "fixed-etf",
        NEAREST: lagged_head,
    }
    facts: dict[str, Callable[[Experiment], float]] = {
        "test accuracy of nn.Linear": lambda experiment: _at_the_end(experiment, TEST_TOP1),
        "test loss of nn.Linear": lambda experiment: _at_the_end(experiment, TEST_LOSS),
        "train accuracy of nn.Linear": lambda experiment: _at_the_end(experiment, TRAIN_TOP1),
        "images of each class": lambda experiment: images_of_each_class(experiment.runs[0]),
        "dimensions for each class": lambda experiment: experiment.runs[0].feature_dim / experiment.runs[0].num_classes,
    }
    gains = {
        name: [statistics.median(points_ahead(experiment, head(experiment))) for experiment in experiments]
        for name, head in heads.items()
    }
    rows = [[f"over {len(experiments)} settings", *heads]]
    for name, fact in facts.items():
        values = [fact(experiment) for experiment in experiments]
        rows.append([name, *(f"{rank_correlation(values, gains[head]):+.2f}" for head in heads)])
    return rows


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """The correlation of the ranks; equal values share the mean of theirs."""
    ranks = [[np.less(values, value).sum() + np.less_equal(values, value).sum() for value in values] for values in (first, second)]
    return float(np.corrcoef(ranks)[0, 1])


def _at_the_end(experiment: Experiment, quantity: Quantity) -> float:
    found = at_epoch(experiment.of(LINEAR), quantity, None)
    if found is None:
        raise ValueError(f"{experiment.name} has no {quantity.title} of {label(LINEAR)}. Leave it out of the records.")
    return found.spread.median
