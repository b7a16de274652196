"""The tables of measurements on the pages, from `results/records`: each is a list of rows of text, headings first."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks.cost_tables import PAPER_HEADS, PAPER_MEMORY
from guided_collapse.experiments.records import (
    QUANTITIES,
    TEST_LOSS,
    TEST_TOP1,
    TRAIN_TOP1,
    Quantity,
    Run,
    SearchRecord,
    read_records,
)
from guided_collapse.experiments.report.formats import NOTHING, short_text
from guided_collapse.experiments.report.styles import in_order, label
from guided_collapse.experiments.report.summaries import (
    LEVELS,
    Experiment,
    at_epoch,
    by_experiment,
    first_epoch,
    measured,
    outcome,
    span,
    spread,
    when_reached,
)
from guided_collapse.experiments.report.tables import pairs_table
from results.upgrade import METHODS as UPGRADES
from results.upgrade import SEEDS as FRESH

Rows = list[list[str]]

LINEAR, LAGGED, NEAREST = "linear", "nearest-etf-lagged", "Nearest frame, lagged"
HEADS = (LINEAR, "cosine", "fixed-etf", "nearest-etf", "nearest-etf-detached", LAGGED)
TITLES = {
    "ufm-10": "UFM, 10 classes",
    "ufm-100": "UFM, 100 classes",
    "ufm-200": "UFM, 200 classes",
    "ufm-1000": "UFM, 1000 classes",
    "fashion-mnist": "Fashion-MNIST, AGD",
    "fashion-mnist-sgd": "Fashion-MNIST, SGD with momentum",
    "cifar10-small": "CIFAR-10, AGD",
}
TEN_CLASSES = {"fashion-mnist-sgd": "Fashion-MNIST, 10 classes", "cifar10-small": "CIFAR-10, 10 classes"}
"""Experiments with few classes in which nn.Linear took part, with their titles."""
DATA = {"omniglot-small1": "Omniglot", "tiny-imagenet-100": "Tiny ImageNet", "cifar10-turned": "CIFAR-10, rotated"}
"""Data sets with many classes, with their titles."""
EARLY = (3, 5)
# The test accuracies of all classes, and of the classes with the most, a medium number, and the fewest training images.
PARTS = {"top1": "all classes", "top1_many": "classes with many images", "top1_medium": "medium", "top1_few": "few"}
GALLERIES = {
    "clinc150": "CLINC150, old model trained on 75 of 150 intents",
    "omniglot": "Omniglot, old model trained on three of five alphabets",
    "tiny-imagenet": "Tiny ImageNet, old model trained on 50 of 100 classes",
    "tiny-imagenet-smaller": "Tiny ImageNet, smaller old model trained on all classes",
}
"""Studies of upgrades, with their titles."""
MAPS = tuple((kind, name) for kind in ("nn.Linear", "cosine") for name in ("Procrustes", "linear map"))
VARIED = {"omniglot-small": "Omniglot", "tiny-imagenet-small": "Tiny ImageNet"}
STEPPED = {"omniglot-of-4": "Omniglot of 4 images", "tiny-imagenet-small": "Tiny ImageNet of 100"}
NETWORKS = {
    **dict.fromkeys(("ufm-10", "ufm-100", "ufm-200", "ufm-1000"), "UFM"),
    "cifar10-resnet18": "ResNet-18",
    "imagenet-resnet50": "ResNet-50",
}
SHARED = ("cifar10-resnet18", "imagenet-resnet50")
"""Experiments for which the head's share of a whole network's step is given."""
METHODS = {
    "ours": "this library",  # recorded before there were two solvers
    "factors": "this library, factors",
    "products": "this library, products",
    "autograd through svd": "autograd through `torch.linalg.svd`",
    "the paper's route": "the paper's route",
}


def all_tables(records: Path) -> dict[str, list[str]]:
    """Returns every table by its name, as lines of Markdown."""
    found = read_records(sorted(records.glob("*.zip")))
    experiments = {experiment.name: experiment for experiment in by_experiment(found.runs)}
    usual = [experiments[name] for name in TITLES]
    many = [experiment for experiment in experiments.values() if experiment.runs[0].configuration["data"] in DATA]
    tight = [experiment for experiment in many if not has_room_for_a_simplex(experiment)]
    long_tailed = [experiment for experiment in many if is_long_tailed(experiment)]
    simplex = [experiment for experiment in many if experiment not in (*tight, *long_tailed)]
    simplex.sort(key=lambda experiment: (experiment.runs[0].configuration["data"], experiment.runs[0].num_train))
    searched = {search.experiment for search in found.searches}
    pairs = pairs_table(usual)

    def recorded(name: str) -> Any:
        return json.loads((records / f"{name}.json").read_text())

    tables = {
        "training": training(usual),
        "pairs": [pairs.columns, *pairs.cells.to_numpy().tolist()],
        "many classes": accuracies([experiment for experiment in simplex if experiment.name in searched]),
        "more classes than dimensions": accuracies(tight),
        "more classes than dimensions at the end": at_the_end(tight),
        "amounts of images": amounts_of_images(simplex),
        "long tails": long_tails(long_tailed),
        "does it beat": does_it_beat([*simplex, *long_tailed, *(experiments[name] for name in TEN_CLASSES)]),
        "what it costs": what_it_costs(recorded),
        "verdicts": verdicts([*simplex, *long_tailed, *tight], searched),
        "gains": gains([*simplex, *long_tailed, *tight]),
        "variants": trials(recorded("variants"), VARIED, against="the first"),
        "steps": trials(recorded("steps"), STEPPED, against="the one before"),
        "choices": choices(found.searches),
        "step": step(recorded),
        "steps of heads": steps_of_heads(recorded("steps-of-heads")),
        "solve": solves(recorded("solve")["solves"]),
        "autograd": over_autograd(recorded("solve")["against autograd"]),
        "ratio": ratios(recorded("solve")["against one SVD"]),
        "a hundred thousand classes": large(recorded("many-classes")),
        **{f"upgrade {name.replace('-', ' ')}": upgrades(recorded(f"upgrade-{name}")) for name in GALLERIES},
        "upgrades in short": upgrades_in_short({title: recorded(f"upgrade-{name}") for name, title in GALLERIES.items()}),
        "order of upgrades": order_of_upgrades({title: recorded(f"upgrade-{name}") for name, title in GALLERIES.items()}),
    }
    return {name: markdown_lines(rows) for name, rows in tables.items()}


def markdown_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a Markdown table from its headings and rows."""
    return [f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def training(experiments: Iterable[Experiment]) -> Rows:
    """Returns how fast and how well heads learn: medians over seeds, with the range if there are several."""
    rows = [["", "", *map(label, HEADS)]]
    for experiment in experiments:
        runs = [run for head in experiment.heads for run in experiment.of(head)]
        # The highest train accuracy among the report's levels that all runs reached.
        reached = {level: when_reached(runs, level) for level in LEVELS}
        level = max((level for level, when in reached.items() if when and when.reached == len(runs)), default=LEVELS[0])
        soon = (when_reached(experiment.of(head), level) for head in HEADS)
        first = f"{TITLES[experiment.name]}, {seeds_text(experiment)}"
        rows.append([first, f"epochs to {level} % train accuracy", *(short_text(when and when.epochs) for when in soon)])
        rows.append(["", *_outcome(experiment, HEADS)])
    return rows


def _outcome(experiment: Experiment, heads: Iterable[str]) -> list[str]:
    found = outcome(experiment)
    return [found.title, *(short_text(found.spreads.get(head), percent=found.percent) for head in heads)]


def has_room_for_a_simplex(experiment: Experiment) -> bool:
    """Returns whether there are enough dimensions for a simplex ETF."""
    return experiment.runs[0].feature_dim >= experiment.runs[0].num_classes - 1


def is_long_tailed(experiment: Experiment) -> bool:
    """Returns whether the training classes were made imbalanced."""
    return bool(experiment.runs[0].configuration["long_tail"] != "none")


def names_of_heads(experiment: Experiment) -> dict[str, str]:
    """Returns the display name of each head in an experiment.

    Without room for a simplex ETF, frames are not ETFs, and the nearest frame is lagged.
    """
    frames = {} if has_room_for_a_simplex(experiment) else {"fixed-etf": "Fixed frame", "nearest-etf": NEAREST}
    return {head: frames.get(head, label(head)) for head in experiment.heads}


def images_of_each_class(experiment: Experiment) -> float:
    """Returns the mean number of training images per class."""
    return experiment.runs[0].num_train / experiment.runs[0].num_classes


def short_title(experiment: Experiment) -> str:
    """Returns a short name for the training data."""
    run = experiment.runs[0]
    images = ", long tail" if is_long_tailed(experiment) else f" of {images_of_each_class(experiment):g} images"
    return f"{DATA[run.configuration['data']]}, {run.num_classes} classes{images}"


def title(experiment: Experiment) -> str:
    """Returns the training data and the number of epochs, as text."""
    run = experiment.runs[0]
    tail = f", long-tailed {run.configuration['long_tail_ratio']:g} to 1"
    images = tail if is_long_tailed(experiment) else f" of {images_of_each_class(experiment):g} images"
    return f"{DATA[run.configuration['data']]}, {run.num_classes} classes{images}, {run.feature_dim} features, {run.planned} epochs"


def seeds_text(experiment: Experiment) -> str:
    """Returns the number of seeds of each head, as text."""
    seeds = span([len(experiment.of(head)) for head in experiment.heads])
    return f"{seeds} {'seed' if seeds == '1' else 'seeds'}"


def accuracies(experiments: Sequence[Experiment]) -> Rows:
    """Returns early and final test accuracy, train accuracy, and the epoch at which a head catches up with the linear layer."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    names = {head: name for experiment in experiments for head, name in names_of_heads(experiment).items()}
    rows = [["", "", *(names[head] for head in heads)]]
    for experiment in experiments:
        last = experiment.runs[0].planned
        wanted = [("test", TEST_TOP1, epoch) for epoch in dict.fromkeys((*EARLY, last))] + [("train", TRAIN_TOP1, last)]
        first = f"{title(experiment)}, {seeds_text(experiment)}"
        for part, quantity, epoch in wanted:
            cells = [_accuracy(experiment, head, quantity, epoch) for head in heads]
            rows.append([first, f"{part} accuracy after {epoch} epochs, %", *cells])
            first = ""
        soon = {head: spread(epochs_to_the_linear_layer(experiment, head)) for head in experiment.heads}
        rows.append(["", "epochs to the test accuracy that nn.Linear ends with", *(short_text(soon.get(head)) for head in heads)])
    return rows


def at_the_end(experiments: Sequence[Experiment]) -> Rows:
    """Returns test accuracy after the last epoch, with experiments as rows and heads as columns."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    names = {head: name for experiment in experiments for head, name in names_of_heads(experiment).items()}
    rows = [[title(each), *(_accuracy(each, head, TEST_TOP1) for head in heads)] for each in experiments]
    return [["test accuracy, %", *(names[head] for head in heads)], *rows]


def amounts_of_images(experiments: Sequence[Experiment]) -> Rows:
    """Returns test and train accuracy at the end, for the heads that all experiments share."""
    heads = in_order(set.intersection(*(set(experiment.heads) for experiment in experiments)))
    rows = [["", "", *map(label, heads)]]
    for experiment in experiments:
        run, images = experiment.runs[0], images_of_each_class(experiment)
        named = f"{DATA[run.configuration['data']]}, {images:g} images of each class, {run.planned} epochs"
        for first, name, quantity in ((named, "test", TEST_TOP1), ("", "train", TRAIN_TOP1)):
            rows.append([first, f"{name} accuracy, %", *(_accuracy(experiment, head, quantity) for head in heads)])
    return rows


def long_tails(experiments: Sequence[Experiment]) -> Rows:
    """Returns test accuracy at the end, of classes with many, medium and few training images."""
    heads = in_order(head for experiment in experiments for head in experiment.heads)
    quantities = {quantity.name: quantity for quantity in QUANTITIES if quantity.split == TEST_TOP1.split}
    rows = [["", "test accuracy, %", *map(label, heads)]]
    for experiment in experiments:
        first = f"{title(experiment)}, {seeds_text(experiment)}"
        for name, part in PARTS.items():
            rows.append([first, part, *(_accuracy(experiment, head, quantities[name]) for head in heads)])
            first = ""
    return rows


def does_it_beat(experiments: Iterable[Experiment]) -> Rows:
    """Returns median points of test accuracy ahead of nn.Linear on the same seed, and on how many seeds a head is ahead."""
    heads = ("cosine", "fixed-etf", "nearest-etf", LAGGED)
    rows = [["test accuracy", "nn.Linear, %", *map(label, heads)]]
    for experiment in experiments:
        cells = []
        for head in heads:
            ahead = points_ahead(experiment, head) if head in experiment.heads else []
            cells.append(f"{statistics.median(ahead):+.1f} ({sum(each > 0 for each in ahead)}/{len(ahead)})" if ahead else NOTHING)
        linear = statistics.median(map(final_accuracy, experiment.of(LINEAR)))
        rows.append([TEN_CLASSES.get(experiment.name) or short_title(experiment), f"{linear:.1f}", *cells])
    return rows


def trials(record: Mapping[str, Any], named: Mapping[str, str], *, against: str) -> Rows:
    """Returns the final test accuracy of each variant, and its lead over the first or the previous one on the same seed."""
    names = [name for name in named if name in record]
    rows = [["", *(f"{named[name]}, {text}" for name in names for text in ("test accuracy, %", f"ahead of {against}"))]]
    descriptions = list(record[names[0]]["runs"])
    for place, description in enumerate(descriptions):
        other = descriptions[0 if against == "the first" else max(0, place - 1)]
        cells = []
        for name in names:
            own, others = (
                {run["seed"]: 100 * run["test_top1"][max(run["test_top1"], key=int)] for run in record[name]["runs"][which]}
                for which in (description, other)
            )
            ahead = [own[seed] - others[seed] for seed in own]
            said = f"{statistics.median(ahead):+.2f}, {sum(gain > 0 for gain in ahead)} of {len(ahead)}"
            cells += [short_text(spread(list(own.values())), percent=True), said if place else NOTHING]
        rows.append([description, *cells])
    return rows


def verdicts(experiments: Iterable[Experiment], searched: Iterable[str]) -> Rows:
    """Returns which heads end ahead of the linear layer or behind it on every seed, and which experiments had their own search."""
    rows = [["", "settings", "highest median", "ahead of nn.Linear on every seed", "behind it on every seed", "neither"]]
    for experiment in experiments:
        names = names_of_heads(experiment)
        medians = {head: statistics.median(map(final_accuracy, experiment.of(head))) for head in experiment.heads}
        groups: list[list[str]] = [[], [], []]
        for head in (head for head in experiment.heads if head != LINEAR):
            ahead = points_ahead(experiment, head)
            place = 0 if min(ahead) > 0 else 1 if max(ahead) < 0 else 2
            groups[place].append(f"{names[head]} ({statistics.median(ahead):+.2f})")
        best = " and ".join(names[head] for head in in_order(medians) if medians[head] == max(medians.values()))
        settings = "searched" if experiment.name in searched else "reused"
        rows.append([title(experiment), settings, best, *(", ".join(group) or NOTHING for group in groups)])
    return rows


def gains(experiments: Sequence[Experiment]) -> Rows:
    """Returns Spearman's rank correlation of each head's median gain over the linear layer with facts about the setting."""
    heads: dict[str, Callable[[Experiment], str]] = {
        label("cosine"): lambda _: "cosine",
        label("fixed-etf"): lambda _: "fixed-etf",
        NEAREST: lambda experiment: LAGGED if has_room_for_a_simplex(experiment) else "nearest-etf",
    }

    def end_of(quantity: Quantity) -> Callable[[Experiment], float]:
        return lambda experiment: at_epoch(experiment.of(LINEAR), quantity).median  # type: ignore[union-attr]

    facts: dict[str, Callable[[Experiment], float]] = {
        "test accuracy of nn.Linear": end_of(TEST_TOP1),
        "test loss of nn.Linear": end_of(TEST_LOSS),
        "train accuracy of nn.Linear": end_of(TRAIN_TOP1),
        "images of each class": images_of_each_class,
        "dimensions for each class": lambda experiment: experiment.runs[0].feature_dim / experiment.runs[0].num_classes,
    }
    of_heads = [[statistics.median(points_ahead(each, head(each))) for each in experiments] for head in heads.values()]
    rows = [[f"over {len(experiments)} settings", *heads]]
    for name, fact in facts.items():
        values = [fact(experiment) for experiment in experiments]
        rows.append([name, *(f"{spearmanr(values, of_head).statistic:+.2f}" for of_head in of_heads)])
    return rows


def choices(searches: Iterable[SearchRecord]) -> Rows:
    """Returns the settings that each search chose for each head."""
    rows = [["search", "grid", "trials", "head", "choice", "validation accuracy, %"]]
    for search in searches:
        grid = "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in search.grid.items())
        first = [search.experiment, grid, str(len(search.trials))]
        for head in in_order(search.choice):
            own = search.choice[head]
            found = [trial.measured or {} for trial in search.trials if trial.head == head and trial.settings == own]
            accuracy = statistics.fmean(100 * each[TEST_TOP1.name] for each in found)
            rows.append([*first, label(head), ", ".join(f"{name} {value:g}" for name, value in own.items()), f"{accuracy:.2f}"])
            first = ["", "", ""]
    return rows


def _accuracy(experiment: Experiment, head: str, quantity: Quantity, epoch: int | None = None) -> str:
    return short_text(at_epoch(experiment.of(head), quantity, epoch), percent=True)


def final_accuracy(run: Run) -> float:
    """Returns test accuracy at the end, in percent."""
    found = at_epoch([run], TEST_TOP1)
    if found is None:
        raise ValueError(f"{run.folder} has no test accuracy. Leave it out of the records.")
    return found.median


def points_ahead(experiment: Experiment, head: str) -> list[float]:
    """Returns the final lead of a head over the linear layer in points of test accuracy, on each seed."""
    linear = {run.seed: final_accuracy(run) for run in experiment.of(LINEAR)}
    return [final_accuracy(run) - linear[run.seed] for run in experiment.of(head)]


def epochs_to_the_linear_layer(experiment: Experiment, head: str) -> list[float]:
    """Returns the first epoch at which each run reached the final test accuracy of its seed's linear layer; infinity for never."""
    linear = {run.seed: final_accuracy(run) for run in experiment.of(LINEAR)}
    return [first_epoch(measured(run, TEST_TOP1) >= linear[run.seed]) for run in experiment.of(head)]


def step(recorded: Callable[[str], Any]) -> Rows:
    """Returns forward and backward time of a training step, the head's part in it, and the memory that a step adds."""
    cosine, nearest = label("cosine"), label("nearest-etf")
    wholes = [f"step, {cosine}", f"step, {nearest}", "step, the paper's route", f"head only, {cosine}", f"head only, {nearest}"]
    rows = [["network, feature_dim, num_classes, batch size", *wholes, f"memory, {nearest}", "the paper's GPU memory"]]
    for name, network in NETWORKS.items():
        cost = recorded(f"cost/{name}")
        of = {row["head"]: row for row in cost["rows"]}
        steps = [_passes(of[head], "") for head in ("cosine", "nearest-etf", "paper-route")]
        parts = [_passes(of[head], "head_") for head in ("cosine", "nearest-etf")]
        papers = dict(zip(PAPER_HEADS, PAPER_MEMORY[name], strict=True))["nearest-etf"]
        sizes = ", ".join(str(cost[size]) for size in ("feature_dim", "num_classes", "batch_size"))
        memory = [_memory(of["nearest-etf"]["peak_mb"]), f"{papers} GB" if papers else "none given"]
        rows.append([f"{network}, {sizes}", *steps, *parts, *memory])
    return rows


def _passes(row: Mapping[str, Any], part: str) -> str:
    forward, backward = row[f"{part}forward_ms"], row[f"{part}backward_ms"]
    if forward is None:
        return row["note"] or NOTHING
    return f"{_time(forward)}, gradient does not fit" if backward is None else _time(forward + backward)


def steps_of_heads(recorded: Sequence[Mapping[str, Any]]) -> Rows:
    """Returns each head's training step relative to nn.Linear; for frames that move only every 10 steps, on average."""
    names = [name for name in recorded[0]["ratios"] if not name.startswith("compiled")]
    rows = []
    for name in names:
        head, _, every = name.partition(" every ")
        texts = []
        for sizes in recorded:
            seconds = sizes["average seconds"] if every else sizes["seconds"]
            texts.append(f"{seconds[name] / seconds[LINEAR]:.2f}")
            if f"compiled {name}" in seconds:
                texts[-1] += f" (compiled {seconds[f'compiled {name}'] / seconds[f'compiled {LINEAR}']:.2f})"
        rows.append([label(head) + (f", moved every {every} steps" if every else ""), *texts])
    return [["feature_dim, num_classes, batch size", *(", ".join(map(str, sizes["sizes"])) for sizes in recorded)], *rows]


def what_it_costs(recorded: Callable[[str], Any]) -> Rows:
    """Returns a head's step relative to nn.Linear, by size, and the head's share of a whole network's step."""
    sizes, shares = recorded("steps-of-heads"), {}
    for network in SHARED:
        for row in recorded(f"cost/{network}")["rows"]:
            if row["forward_ms"] is not None:
                part, whole = (row[f"{part}forward_ms"] + row[f"{part}backward_ms"] for part in ("head_", ""))
                shares[network, row["head"]] = f"{100 * part / whole:.1f} %"
    columns = [f"{size[0]} features, {size[1]} classes" for size in (each["sizes"] for each in sizes)]
    rows = [["", *columns, *(f"share of a {NETWORKS[network]}'s step" for network in SHARED)]]
    for name in (LINEAR, "cosine", "fixed-etf", "nearest-etf", LAGGED, f"{LAGGED} every 10"):
        head, _, every = name.partition(" every ")
        seconds = (each["average seconds" if every else "seconds"] for each in sizes)
        ratios = (f"{of[name] / of[LINEAR]:.1f}" for of in seconds)
        first = label(head) + (f", `every={every}`" if every else "")
        rows.append([first, *ratios, *(shares.get((network, name), NOTHING) for network in SHARED)])
    return rows


def over_autograd(recorded: Sequence[Mapping[str, Any]]) -> Rows:
    """Returns forward and backward time of a solve relative to autograd through the SVD."""
    rows = [["feature_dim, num_classes", "this library", METHODS["autograd through svd"], "ratio"]]
    for row in recorded:
        ours, theirs = row["seconds"].values()
        sizes = f"{row['feature_dim']}, {row['num_classes']}"
        rows.append([sizes, _time(1e3 * ours), _time(1e3 * theirs), f"{ours / theirs:.2f}"])
    return rows


def solves(recorded: Sequence[Mapping[str, Any]]) -> Rows:
    """Returns forward and backward time and memory of one solve, by size and method."""
    by_size: dict[str, dict[str, str]] = {}
    for row in recorded:
        if "forward and backward" in row:
            text = f"{_time(1e3 * row['forward and backward'])}, {_memory(row['megabytes'])}"
        else:
            text = f"{_time(1e3 * row['forward'])}, gradient does not fit" if "forward" in row else str(row["refused"])
        by_size.setdefault(f"{row['feature_dim']}, {row['num_classes']}", {})[row["method"]] = text
    methods = [method for method in METHODS if any(method in texts for texts in by_size.values())]
    rows = [[size, *(texts[method] for method in methods)] for size, texts in by_size.items()]
    return [["feature_dim, num_classes", *(METHODS[method] for method in methods)], *rows]


def ratios(recorded: Sequence[Mapping[str, Any]]) -> Rows:
    """Returns forward and backward time of a solve relative to one thin SVD of the same matrix."""
    deltas = sorted({row["delta"] for row in recorded}, reverse=True)
    of = {(row["singular values"], row["delta"]): row["forward and backward"] / row["svd"] for row in recorded}
    names = dict.fromkeys(name for name, _ in of)
    rows = [[name, *(f"{of[name, delta]:.2f}" if (name, delta) in of else NOTHING for delta in deltas)] for name in names]
    return [["singular values of the class means", *(f"proximal weight {delta:g}" for delta in deltas)], *rows]


def large(recorded: Mapping[str, Any]) -> Rows:
    """Returns the time of a training step with very many classes, and the memory of the classifier in addition to the logits."""
    sizes, times, memory = (recorded[name] for name in ("sizes", "times", "memory"))
    first = f"{sizes['num_classes']} classes, feature_dim {sizes['feature_dim']}, batch size {sizes['batch_size']}"
    rows = [[first, "step", "of nn.Linear's", "added at the peak, in weights", "of which state, in weights"]]
    for kind, name in (("nn.Linear", "nn.Linear"), ("nearest", f"nearest frame, every {times['every']} steps")):
        own, linear = (statistics.median(times["windows"][which]) for which in (kind, "nn.Linear"))
        floats = (f"{memory[kind][what]:.2f}" for what in ("added", "state"))
        rows.append([name, _time(1e3 * own / times["every"]), f"{own / linear:.2f}", *floats])
    return rows


def upgrades(record: Mapping[str, Any]) -> Rows:
    """Returns top-1 of each method in the old gallery and in its own, and on how many seeds it beats the old model."""
    parts = {"top1": "old gallery"}
    if record["num_known"] < record["num_classes"]:
        parts |= {"top1_unseen": "of unseen classes", "top1_among_unseen": "among these alone"}
    rows = [["top-1 of new queries, %", *parts.values(), "own gallery", "seeds ahead of old/old"]]
    old = by_seed(record, "old", "old/old")
    rows.append(["old/old", *(_percent(old, part) for part in parts), NOTHING, NOTHING])
    for method in record["choice"]:
        if method == "old":
            continue
        kind, test = UPGRADES[method]
        found = by_seed(record, method, "new/old" if test == "new/new" else test)
        ahead = f"{sum(found[seed]['top1'] > old[seed]['top1'] for seed in old)} of {len(old)}"
        own = _percent(by_seed(record, method, "new/new"), "top1") if test in ("new/new", "new/old") else NOTHING
        rows.append([method, *(_percent(found, part) for part in parts), own, ahead])
        if kind == "planned":
            planned = by_seed(record, method, "old/old")
            rows.append([f"{method}: its old/old", *(_percent(planned, part) for part in parts), NOTHING, NOTHING])
    return rows


def upgrades_in_short(records: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Returns top-1 in the old gallery of the old model, the best map and anchored heads, and of a new model in its own gallery."""
    rows = [["top-1, %", "old model", "best map", "anchored, `frame=0`", "anchored, `frame=0.5`", "gallery embedded again"]]
    for title, record in records.items():
        maps = [_percent(by_seed(record, f"{kind}, {name}", name.lower()), "top1") for kind, name in MAPS]
        asked = (("old", "old/old"), ("old means", "new/old"), ("halfway", "new/old"), ("cosine", "new/new"))
        old, *others = (_percent(by_seed(record, *each), "top1") for each in asked)
        rows.append([title, old, max(maps, key=lambda text: float(text.split()[0])), *others])
    return rows


def order_of_upgrades(records: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Returns top-1 on each seed: of independent models, those mapped by the better of two maps, old ones, and anchored ones."""
    rows = [["", "seed", "nn.Linear", "nn.Linear, mapped", "cosine, mapped", "old/old", "old means", "ordered", "with cosine"]]
    for title, record in records.items():
        alone, old, anchored = (
            by_seed(record, *each) for each in (("nn.Linear", "new/old"), ("old", "old/old"), ("old means", "new/old"))
        )
        for seed in old:
            maps = [
                max(by_seed(record, f"{kind}, {name}", name.lower())[seed]["top1"] for own, name in MAPS if own == kind)
                for kind in ("nn.Linear", "cosine")
            ]
            values = [alone[seed]["top1"], *maps, old[seed]["top1"], anchored[seed]["top1"]]
            ordered = ("yes" if values[0] < each < values[3] < values[4] else "no" for each in maps)
            rows.append([title if seed == min(old) else "", str(seed), *(f"{100 * value:.2f}" for value in values), *ordered])
    return rows


def by_seed(record: Mapping[str, Any], method: str, test: str) -> dict[int, dict[str, float]]:
    """Returns the results of a method's test by seed, for fresh seeds."""
    kind = "old" if method == "old" else UPGRADES[method][0]
    asked = (kind, record["choice"][method])
    done = [run for run in record["trainings"] if (run["kind"], run["settings"]) == asked and run["seed"] in FRESH]
    return {run["seed"]: run["tests"][test] for run in done}


def _percent(found: Mapping[int, Mapping[str, float]], part: str) -> str:
    return short_text(spread([100 * tests[part] for tests in found.values()]), percent=True)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.3g} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.3g} s"


def _memory(megabytes: float) -> str:
    return f"{megabytes:.3g} MB" if megabytes < 999.5 else f"{megabytes / 1000:.3g} GB"
