"""The tables of many classes on real images, made from `results/records`: every head beside the linear layer that people use."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from guided_collapse.experiments.records.declared.quantities import QUANTITIES, TEST_TOP1, TRAIN_TOP1, Quantity
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.schema import SearchRecord
from guided_collapse.experiments.report.experiment import Experiment
from guided_collapse.experiments.report.styles import in_order, label
from guided_collapse.experiments.report.summaries import at_epoch, spread
from guided_collapse.experiments.report.tables.table import NOTHING, epochs_text, short_text

LINEAR = "linear"
NEAREST = "Nearest frame, lagged"
DATA = {"omniglot-small1": "Omniglot", "tiny-imagenet-100": "Tiny ImageNet", "cifar10-turned": "CIFAR-10, turned"}
EARLY = (3, 5)
# Of all classes, and of those with the most, medium and the fewest training images.
PARTS = {"top1": "all classes", "top1_many": "classes with many images", "top1_medium": "medium", "top1_few": "few"}
# What heads were tried on that are not part of the package.
VARIED = {"omniglot-small": "Omniglot", "tiny-imagenet-small": "Tiny ImageNet"}
STEPPED = {"omniglot-of-4": "Omniglot of 4 images", "tiny-imagenet-small": "Tiny ImageNet of 100"}

# Which other head each of them is compared with.
Against = Literal["the first", "the one before"]


def is_of_many_classes(experiment: Experiment) -> bool:
    """Whether it belongs in these tables."""
    return experiment.runs[0].configuration["data"] in DATA


def has_room_for_a_simplex(experiment: Experiment) -> bool:
    """Whether there are dimensions enough for a simplex ETF."""
    return experiment.runs[0].feature_dim >= experiment.runs[0].num_classes - 1


def lagged_head(experiment: Experiment) -> str:
    """The nearest head that is lagged, which it is by itself with more classes than dimensions."""
    return "nearest-etf-lagged" if has_room_for_a_simplex(experiment) else "nearest-etf"


def names_of_heads(experiment: Experiment) -> dict[str, str]:
    """What each head is called in a row: with more classes than dimensions no frame is an ETF."""
    frames = {} if has_room_for_a_simplex(experiment) else {"fixed-etf": "Fixed frame", "nearest-etf": NEAREST}
    return {head: frames.get(head, label(head)) for head in experiment.heads}


def is_long_tailed(experiment: Experiment) -> bool:
    """Whether training classes were made to differ in size."""
    return bool(experiment.runs[0].configuration["long_tail"] != "none")


def from_few_images(experiments: Iterable[Experiment]) -> list[Experiment]:
    """By data, and then from few training images to many."""
    return sorted(experiments, key=lambda experiment: (experiment.runs[0].configuration["data"], experiment.runs[0].num_train))


def images_of_each_class(run: Run) -> float:
    """How many training images there are of a class, on average."""
    return run.num_train / run.num_classes


def title(experiment: Experiment) -> str:
    """What was trained on and how long, in words."""
    run = experiment.runs[0]
    ratio = run.configuration["long_tail_ratio"]
    images = f", long-tailed {ratio:g} to 1" if is_long_tailed(experiment) else f" of {images_of_each_class(run):g} images"
    return f"{DATA[run.configuration['data']]}, {run.num_classes} classes{images}, {run.feature_dim} features, {run.planned} epochs"


def accuracies(experiments: Iterable[Experiment]) -> list[list[str]]:
    """Test accuracy early and at the end, train accuracy, and when the linear layer is caught up with: rows with headings."""
    experiments = list(experiments)
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    names = {head: name for experiment in experiments for head, name in names_of_heads(experiment).items()}
    rows = [["", "", *(names[head] for head in heads)]]
    for experiment in experiments:
        last = experiment.runs[0].planned
        wanted = [(f"test accuracy after {epoch} epochs, %", TEST_TOP1, epoch) for epoch in dict.fromkeys((*EARLY, last))]
        wanted.append((f"train accuracy after {last} epochs, %", TRAIN_TOP1, last))
        for place, (name, quantity, epoch) in enumerate(wanted):
            cells = [_accuracy(experiment, head, quantity, epoch) for head in heads]
            rows.append([f"{title(experiment)}, {seeds_text(experiment)}" if place == 0 else "", name, *cells])
        soon = {head: spread(epochs_to_the_linear_layer(experiment, head)) for head in experiment.heads}
        rows.append(["", "epochs to the test accuracy that nn.Linear ends with", *(short_text(soon.get(head)) for head in heads)])
    return rows


def amounts_of_images(experiments: Iterable[Experiment]) -> list[list[str]]:
    """Test and train accuracy at the end, for those heads that all have: rows with headings."""
    experiments = list(experiments)
    heads = in_order(set.intersection(*(set(experiment.heads) for experiment in experiments)))
    rows = [["", "", *map(label, heads)]]
    for experiment in experiments:
        run = experiment.runs[0]
        named = f"{DATA[run.configuration['data']]}, {images_of_each_class(run):g} images of each class, {run.planned} epochs"
        for first, name, quantity in ((named, "test", TEST_TOP1), ("", "train", TRAIN_TOP1)):
            rows.append([first, f"{name} accuracy, %", *(_accuracy(experiment, head, quantity) for head in heads)])
    return rows


def long_tails(experiments: Iterable[Experiment]) -> list[list[str]]:
    """Test accuracy at the end, of classes with many, medium and few training images: rows with headings."""
    experiments = list(experiments)
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    rows = [["", "test accuracy, %", *map(label, heads)]]
    quantities = {quantity.name: quantity for quantity in QUANTITIES if quantity.split == TEST_TOP1.split}
    for experiment in experiments:
        first = f"{title(experiment)}, {seeds_text(experiment)}"
        for name, part in PARTS.items():
            rows.append([first, part, *(_accuracy(experiment, head, quantities[name]) for head in heads)])
            first = ""
    return rows


def in_short(experiments: Iterable[Experiment]) -> list[list[str]]:
    """Test accuracy at the end of a linear layer, a learned one on spheres, a fixed frame and the nearest: rows with headings."""
    heads = (LINEAR, "cosine", "fixed-etf", "nearest-etf-lagged")
    rows = [["test accuracy at the end, %", *map(label, heads[:3]), NEAREST]]
    for experiment in experiments:
        rows.append([title(experiment), *(_accuracy(experiment, head, TEST_TOP1) for head in heads)])
    return rows


def trials(record: Mapping[str, Any], named: Mapping[str, str], *, against: Against) -> list[list[str]]:
    """Test accuracy at the end of heads that were tried, and how far ahead of another one on the same seed: rows with headings.

    Args:
        record: what `results.trials` has written.
        named: what was trained on, in words, by the names in the record.
        against: which other one.
    """
    names = [name for name in named if name in record]
    rows = [["", *(f"{named[name]}, {text}" for name in names for text in ("test accuracy, %", f"ahead of {against}"))]]
    descriptions = list(record[names[0]]["runs"])
    for place, description in enumerate(descriptions):
        cells = []
        for name in names:
            other = descriptions[0 if against == "the first" else max(0, place - 1)]
            own, others = (_ends(record[name]["runs"][which]) for which in (description, other))
            gains = [own[seed] - others[seed] for seed in own]
            ahead = f"{statistics.median(gains):+.2f}, {sum(gain > 0 for gain in gains)} of {len(gains)}"
            cells += [short_text(spread(list(own.values())), percent=True), ahead if place else NOTHING]
        rows.append([description, *cells])
    return rows


def verdicts(experiments: Iterable[Experiment], searched: Collection[str]) -> list[list[str]]:
    """Who ends ahead of the linear layer, seed by seed: rows with headings.

    Args:
        experiments: one for each row.
        searched: names of those that have settings of their own.
    """
    rows = [["", "settings", "highest median", "ahead of nn.Linear on every seed", "behind it on every seed", "neither"]]
    for experiment in experiments:
        names = names_of_heads(experiment)
        medians = {head: statistics.median(map(final_accuracy, experiment.of(head))) for head in experiment.heads}
        ahead, behind, neither = [], [], []
        for head in experiment.heads:
            if head == LINEAR:
                continue
            gains = points_ahead(experiment, head)
            text = f"{names[head]} ({statistics.median(gains):+.2f})"
            group = ahead if min(gains) > 0 else behind if max(gains) < 0 else neither
            group.append(text)
        best = " and ".join(names[head] for head in in_order(medians) if medians[head] == max(medians.values()))
        settings = "searched" if experiment.name in searched else "taken over"
        rows.append([title(experiment), settings, best, *(", ".join(group) or NOTHING for group in (ahead, behind, neither))])
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


def _accuracy(experiment: Experiment, head: str, quantity: Quantity, epoch: int | None = None) -> str:
    """Median and range over seeds, at an epoch or at the end."""
    found = at_epoch(experiment.of(head), quantity, epoch)
    return short_text(found.spread if found else None, percent=True)


def _ends(runs: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Test accuracy in per cent at the last epoch, by seed."""
    return {run["seed"]: 100 * run["test_top1"][max(run["test_top1"], key=int)] for run in runs}


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
