"""The tables of measurements in README.md and results/README.md, made from `results/records`."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from guided_collapse.experiments.records.reading import read_records
from guided_collapse.experiments.records.schema import CostRecord, HeadCost
from guided_collapse.experiments.report.experiment import Experiment, by_experiment
from guided_collapse.experiments.report.published_results import paper_memory
from guided_collapse.experiments.report.styles import label
from guided_collapse.experiments.report.tables.outcome import outcome
from guided_collapse.experiments.report.tables.pairs import pairs_table
from guided_collapse.experiments.report.tables.reaching import LEVELS, when_reached
from guided_collapse.experiments.report.tables.table import NOTHING, short_text
from results import gains, many_classes

HEADS = (many_classes.LINEAR, "cosine", "fixed-etf", "nearest-etf", "nearest-etf-detached", "nearest-etf-lagged")
HEADS_IN_SHORT = tuple(head for head in HEADS if head != "nearest-etf-detached")
TITLES = {
    "ufm-10": "UFM, 10 classes",
    "ufm-100": "UFM, 100 classes",
    "ufm-200": "UFM, 200 classes",
    "ufm-1000": "UFM, 1000 classes",
    "fashion-mnist": "Fashion-MNIST, AGD",
    "fashion-mnist-sgd": "Fashion-MNIST, SGD with momentum",
    "cifar10-small": "CIFAR-10, AGD",
}
NETWORKS = {
    "ufm-10": "UFM",
    "ufm-100": "UFM",
    "ufm-200": "UFM",
    "ufm-1000": "UFM",
    "cifar10-resnet18": "ResNet-18",
    "imagenet-resnet50": "ResNet-50",
}
METHODS = {
    "ours": "this library",  # in records from before there were two solvers
    "factors": "this library, factors",
    "products": "this library, products",
    "autograd through svd": "autograd through `torch.linalg.svd`",
    "the paper's route": "the paper's route",
}


def all_tables(records: Path) -> dict[str, list[str]]:
    """Every table by its name, in lines."""
    found = read_records([records])
    experiments = {experiment.name: experiment for experiment in by_experiment(found.runs)}
    in_order = [experiments[name] for name in TITLES if name in experiments]
    many = [experiment for experiment in experiments.values() if many_classes.is_of_many_classes(experiment)]
    tight = [experiment for experiment in many if not many_classes.has_room_for_a_simplex(experiment)]
    long_tailed = [experiment for experiment in many if many_classes.is_long_tailed(experiment)]
    simplex = many_classes.from_few_images(experiment for experiment in many if experiment not in (*tight, *long_tailed))
    searched = {search.experiment for search in found.searches}
    solve = json.loads((records / "solve.json").read_text())

    def tried(what: str, named: Mapping[str, str], against: many_classes.Against) -> list[str]:
        return _lines(many_classes.trials(json.loads((records / f"{what}.json").read_text()), named, against=against))

    return {
        "training": training(in_order),
        "training in short": training_in_short(in_order),
        "pairs": pairs(in_order),
        "many classes": _lines(many_classes.accuracies(experiment for experiment in simplex if experiment.name in searched)),
        "more classes than dimensions": _lines(many_classes.accuracies(tight)),
        "amounts of images": _lines(many_classes.amounts_of_images(simplex)),
        "long tails": _lines(many_classes.long_tails(long_tailed)),
        "many classes in short": _lines(many_classes.in_short([*simplex, *long_tailed])),
        "verdicts": _lines(many_classes.verdicts([*simplex, *long_tailed, *tight], searched)),
        "gains": _lines(gains.goes_with([*simplex, *long_tailed, *tight])),
        "variants": tried("variants", many_classes.VARIED, "the first"),
        "steps": tried("steps", many_classes.STEPPED, "the one before"),
        "choices": _lines(many_classes.choices(found.searches)),
        "step": step({cost.experiment: cost for cost in found.costs}),
        "solve": solves(solve["solves"]),
        "ratio": ratios(solve["against one SVD"]),
        "a hundred thousand classes": large(json.loads((records / "many-classes.json").read_text())),
    }


def training(experiments: Iterable[Experiment]) -> list[str]:
    """How soon heads learn, and how well: medians over seeds, with the range if there is one."""
    rows = []
    for experiment in experiments:
        level = _level_of_all(experiment)
        reached = [when_reached(experiment.of(head), level) for head in HEADS]
        rows.append(
            [_title(experiment), f"epochs to {level} % train accuracy", *(short_text(when and when.epochs) for when in reached)]
        )
        rows.append(["", *_outcome(experiment, HEADS)])
    return _table(["", "", *map(label, HEADS)], rows)


def training_in_short(experiments: Iterable[Experiment]) -> list[str]:
    """How well the heads of the paper do: a row for each experiment."""
    rows = [[_title(experiment), *_outcome(experiment, HEADS_IN_SHORT)] for experiment in experiments]
    return _table(["", "", *map(label, HEADS_IN_SHORT)], rows)


def pairs(experiments: Sequence[Experiment]) -> list[str]:
    """The report's table of heads against each other on the same seeds."""
    table = pairs_table(experiments)
    return _table(table.columns, [[cell.text for cell in row] for row in table.rows]) if table else []


def step(costs: dict[str, CostRecord]) -> list[str]:
    """Forward and backward of a training step, the head's part in it, and the memory that a step adds."""
    rows = []
    for name, network in NETWORKS.items():
        if name not in costs:
            continue
        of = {row.head: row for row in costs[name].rows}
        standard, implicit, route = of["cosine"], of["nearest-etf"], of.get("paper-route")
        papers = paper_memory(name).get("nearest-etf")
        rows.append(
            [
                f"{network}, {costs[name].feature_dim}, {costs[name].num_classes}, {costs[name].batch_size}",
                *(_step_text(cost) for cost in (standard, implicit, route)),
                *(_time(_sum(cost.head_forward_ms, cost.head_backward_ms)) for cost in (standard, implicit)),
                _memory(implicit.peak_mb),
                f"{papers} GB" if papers else "none given",
            ]
        )
    wholes = [f"step, {label('cosine')}", f"step, {label('nearest-etf')}", "step, the paper's route"]
    parts = [f"head only, {label('cosine')}", f"head only, {label('nearest-etf')}"]
    memory = [f"memory, {label('nearest-etf')}", "the paper's GPU memory"]
    return _table(["network, feature_dim, num_classes, batch size", *wholes, *parts, *memory], rows)


def solves(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Forward and backward of one solve, by method."""
    by_size: dict[tuple[int, int], dict[str, str]] = {}
    for row in measured:
        by_size.setdefault((row["feature_dim"], row["num_classes"]), {})[row["method"]] = _solve_text(row)
    methods = [method for method in METHODS if any(method in texts for texts in by_size.values())]
    rows = [[f"{dim}, {classes}", *(texts[method] for method in methods)] for (dim, classes), texts in by_size.items()]
    return _table(["feature_dim, num_classes", *(METHODS[method] for method in methods)], rows)


def ratios(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Forward and backward over one thin SVD of the same matrix."""
    deltas = sorted({row["delta"] for row in measured}, reverse=True)
    names = list(dict.fromkeys(row["singular values"] for row in measured))
    of = {(row["singular values"], row["delta"]): row["forward and backward"] / row["svd"] for row in measured}
    rows = [[name, *(f"{of[name, delta]:.2f}" if (name, delta) in of else NOTHING for delta in deltas)] for name in names]
    return _table(["singular values of the class means", *(f"proximal weight {delta:g}" for delta in deltas)], rows)


def large(measured: dict[str, Any]) -> list[str]:
    """A training step with very many classes, and the memory that the classifier adds to what logits take."""
    sizes, times, memory = (measured[name] for name in ("sizes", "times", "memory"))
    rows = []
    for kind, name in (("nn.Linear", "nn.Linear"), ("nearest", f"nearest frame, every {times['every']} steps")):
        step = 1e3 * statistics.median(times["windows"][kind]) / times["every"]
        share = statistics.median(times["windows"][kind]) / statistics.median(times["windows"]["nn.Linear"])
        floats = (f"{memory[kind][what]:.2f}" for what in ("added", "state"))
        rows.append([name, _time(step), f"{share:.2f}", *floats])
    first = f"{sizes['num_classes']} classes, feature_dim {sizes['feature_dim']}, batch size {sizes['batch_size']}"
    return _table([first, "step", "of nn.Linear's", "added at the peak, in weights", "of it state, in weights"], rows)


def _title(experiment: Experiment) -> str:
    return f"{TITLES[experiment.name]}, {many_classes.seeds_text(experiment)}"


def _outcome(experiment: Experiment, heads: Iterable[str]) -> list[str]:
    """What training comes to in the end, and how it does for each head."""
    found = outcome(experiment)
    return [found.title, *(short_text(found.spreads.get(head), percent=found.percent) for head in heads)]


def _level_of_all(experiment: Experiment) -> int:
    """The highest train accuracy, of those that the report looks at, that all runs came to; the lowest if there is none."""
    runs = [run for head in experiment.heads for run in experiment.of(head)]
    reached = {level: when_reached(runs, level) for level in LEVELS}
    return max((level for level, when in reached.items() if when and when.reached == len(runs)), default=LEVELS[0])


def _sum(forward: float | None, backward: float | None) -> float | None:
    return None if forward is None or backward is None else forward + backward


def _step_text(cost: HeadCost | None) -> str:
    if cost is None or cost.forward_ms is None:
        return (cost and cost.note) or NOTHING
    return (
        f"{_time(cost.forward_ms)}, gradient does not fit"
        if cost.backward_ms is None
        else _time(_sum(cost.forward_ms, cost.backward_ms))
    )


def _solve_text(row: dict[str, Any]) -> str:
    if "forward and backward" in row:
        return f"{_time(1e3 * row['forward and backward'])}, {_memory(row['megabytes'])}"
    return f"{_time(1e3 * row['forward'])}, gradient does not fit" if "forward" in row else str(row["refused"])


def _time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return NOTHING
    return f"{milliseconds:.3g} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.3g} s"


def _memory(megabytes: float | None) -> str:
    if megabytes is None:
        return NOTHING
    return f"{megabytes:.3g} MB" if megabytes < 999.5 else f"{megabytes / 1000:.3g} GB"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return _lines([columns, *rows])


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, of its headings and its rows."""
    headings, *others = rows
    return [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *others)]
