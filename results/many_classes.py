"""The tables of many classes on real images, made from `results/records`: every head beside the linear layer that people use."""

import math
import statistics
from collections.abc import Iterable, Sequence

from guided_collapse.records.declared.quantities import TEST_TOP1, TRAIN_TOP1
from guided_collapse.records.run import Run
from guided_collapse.records.schema import SearchRecord
from guided_collapse.report.experiment import Experiment
from guided_collapse.report.styles import in_order, label
from guided_collapse.report.summaries import at_epoch, spread
from guided_collapse.report.tables.table import NOTHING, epochs_text, short_text

LINEAR = "standard-unnormalised"
DATA = {"omniglot-small1": "Omniglot", "tiny-imagenet-100": "Tiny ImageNet", "cifar10-turned": "CIFAR-10, turned"}
EARLY = (3, 5)


def is_of_many_classes(experiment: Experiment) -> bool:
    """Whether it belongs in these tables."""
    return experiment.runs[0].configuration["data"] in DATA


def has_room_for_a_simplex(experiment: Experiment) -> bool:
    """Whether there are dimensions enough for a simplex ETF."""
    return experiment.runs[0].feature_dim >= experiment.runs[0].num_classes - 1


def title(experiment: Experiment) -> str:
    """What was trained on, in words."""
    run = experiment.runs[0]
    images = run.num_train / run.num_classes
    return f"{DATA[run.configuration['data']]}, {run.num_classes} classes of {images:g} images, {run.feature_dim} features"


def accuracies(experiments: Iterable[Experiment]) -> list[list[str]]:
    """Test accuracy early and at the end, train accuracy, and when the linear layer is caught up with: rows with headings."""
    experiments = list(experiments)
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows = [["", "", *map(label, heads)]]
    for experiment in experiments:
        last = experiment.runs[0].planned
        wanted = [(f"test accuracy after {epoch} epochs, %", TEST_TOP1, epoch) for epoch in dict.fromkeys((*EARLY, last))]
        wanted.append((f"train accuracy after {last} epochs, %", TRAIN_TOP1, last))
        for place, (name, quantity, epoch) in enumerate(wanted):
            found = [at_epoch(experiment.of(head), quantity, epoch) for head in heads]
            cells = [short_text(at.spread if at else None, percent=True) for at in found]
            rows.append([f"{title(experiment)}, {seeds_text(experiment)}" if place == 0 else "", name, *cells])
        soon = {head: spread(epochs_to_the_linear_layer(experiment, head)) for head in experiment.heads}
        rows.append(["", "epochs to the test accuracy that nn.Linear ends with", *(short_text(soon.get(head)) for head in heads)])
    return rows


def verdicts(experiments: Iterable[Experiment]) -> list[list[str]]:
    """Who ends ahead of the linear layer, seed by seed: rows with headings."""
    rows = [["", "highest median", "ahead of nn.Linear on every seed", "behind it on every seed", "neither"]]
    for experiment in experiments:
        medians = {head: statistics.median(map(final_accuracy, experiment.of(head))) for head in experiment.heads}
        ahead, behind, neither = [], [], []
        for head in experiment.heads:
            if head == LINEAR:
                continue
            gains = points_ahead(experiment, head)
            text = f"{label(head)} ({statistics.median(gains):+.2f})"
            group = ahead if min(gains) > 0 else behind if max(gains) < 0 else neither
            group.append(text)
        best = label(max(medians, key=medians.__getitem__))
        rows.append([title(experiment), best, *(", ".join(group) or NOTHING for group in (ahead, behind, neither))])
    return rows


def choices(searches: Iterable[SearchRecord]) -> list[list[str]]:
    """What each search has chosen for each head: rows with headings."""
    rows = [["search", "grid", "trials", "head", "choice", "validation accuracy, %"]]
    for search in searches:
        grid = "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in search.grid.items())
        first = [search.experiment, grid, str(len(search.trials))]
        for head in in_order(search.choice):
            own = search.choice[head]
            found = [trial.measured for trial in search.trials if trial.head == head and trial.settings == own]
            accuracy = statistics.fmean(100 * (measured or {})[TEST_TOP1.name] for measured in found)
            rows.append([*first, label(head), ", ".join(f"{name} {value:g}" for name, value in own.items()), f"{accuracy:.2f}"])
            first = ["", "", ""]
    return rows


def final_accuracy(run: Run) -> float:
    """Test accuracy at the end, in per cent."""
    found = at_epoch([run], TEST_TOP1, None)
    if found is None:
        raise ValueError(f"{run.folder} has no test accuracy. Leave it out of the records.")
    return found.spread.median


def points_ahead(experiment: Experiment, head: str) -> Sequence[float]:
    """By how many points of test accuracy a head ends ahead of the linear layer, on each seed."""
    linear = {run.seed: final_accuracy(run) for run in experiment.of(LINEAR)}
    return [final_accuracy(run) - linear[run.seed] for run in experiment.of(head)]


def epochs_to_the_linear_layer(experiment: Experiment, head: str) -> list[float]:
    """When each run was first measured with the test accuracy that the linear layer of its seed ends with; infinite for never."""
    linear = {run.seed: final_accuracy(run) for run in experiment.of(LINEAR)}
    found = []
    for run in experiment.of(head):
        measured = TEST_TOP1.factor * run.epochs.of(TEST_TOP1.split, TEST_TOP1.name)
        found.append(min((float(epoch) for epoch in run.epochs.numbers[measured >= linear[run.seed]]), default=math.inf))
    return found


def seeds_text(experiment: Experiment) -> str:
    """How many seeds each head has."""
    seeds = epochs_text(tuple(len(experiment.of(head)) for head in experiment.heads))
    return f"{seeds} {'seed' if seeds == '1' else 'seeds'}"
