"""The figures that README.md and results/README.md quote, as Markdown tables made from `results/records`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from guided_collapse.report.cost import CostRecord, HeadCost
from guided_collapse.report.experiment import Experiment, by_experiment
from guided_collapse.report.numbers import amount, at_epoch_cell, epochs_text, figure, spread_text
from guided_collapse.report.paper_figures import paper_memory
from guided_collapse.report.quantities import TEST_TOP1
from guided_collapse.report.reaching import LEVELS, when_reached
from guided_collapse.report.records import read_records
from guided_collapse.report.summaries import at_epoch

TITLES = {
    "ufm-10": "free features, 10 classes",
    "ufm-100": "free features, 100 classes",
    "ufm-200": "free features, 200 classes",
    "ufm-1000": "free features, 1000 classes",
    "fashion-mnist": "Fashion-MNIST, AGD",
    "fashion-mnist-sgd": "Fashion-MNIST, SGD with momentum",
    "cifar10-small": "CIFAR-10, AGD",
}
HEADS = {
    "standard": "learned",
    "fixed": "fixed ETF",
    "implicit": "nearest ETF",
    "implicit-detached": "nearest ETF, no gradient",
    "implicit-lagged": "nearest ETF, lagged",
}
COST_TITLES = {
    "ufm-10": "UFM, 512, 10",
    "ufm-100": "UFM, 1024, 100",
    "ufm-200": "UFM, 1024, 200",
    "ufm-1000": "UFM, 1024, 1000",
    "cifar10-resnet18": "ResNet-18, 512, 10",
    "imagenet-resnet50": "ResNet-50, 2048, 1000",
}
NOTHING = "-"


def all_blocks(records: Path) -> dict[str, list[str]]:
    """Every table by its name, in lines."""
    found = read_records([records])
    experiments = {experiment.name: experiment for experiment in by_experiment(found.runs)}
    in_order = [experiments[name] for name in TITLES if name in experiments]
    solve = json.loads((records / "solve.json").read_text())
    return {
        "training": training(in_order),
        "step": step(found.costs),
        "solve": solves(solve["solves"]),
        "ratio": ratios(solve["against one SVD"]),
    }


def training(experiments: Sequence[Experiment]) -> list[str]:
    """How soon heads learn, and how well: medians over seeds, with the range if there is one."""
    rows = []
    for experiment in experiments:
        seeds = epochs_text(tuple(len(experiment.of(head)) for head in experiment.heads))
        title = f"{TITLES[experiment.name]}, {seeds} {'seed' if seeds == '1' else 'seeds'}"
        level = _level_of_all(experiment)
        rows.append([title, f"epochs to {level} % train accuracy", *(_reached(experiment, head, level) for head in HEADS)])
        if experiment.has_test:
            last = max(int(run.epochs.numbers[-1]) for run in experiment.runs)
            cells = (at_epoch_cell(at_epoch(experiment.of(head), TEST_TOP1, last), last, percent=True).text for head in HEADS)
            rows.append(["", f"test accuracy after {last} epochs, %", *cells])
    return _table(["", "", *HEADS.values()], rows)


def step(costs: Iterable[CostRecord]) -> list[str]:
    """Time of a training step and the memory that it adds, with the paper's GPU memory beside them."""
    by_name = {cost.experiment: cost for cost in costs}
    rows = []
    for name, title in COST_TITLES.items():
        if name not in by_name:
            continue
        of = {row.head: row for row in by_name[name].rows}
        papers = paper_memory(name).get("implicit")
        rows.append(
            [
                f"{title}, {by_name[name].setting['batch_size']}",
                *(_step_text(of.get(head)) for head in ("standard", "implicit", "paper-route")),
                *(f"{amount(peak)} MB" if (peak := of[head].peak_mb) is not None else NOTHING for head in ("standard", "implicit")),
                f"{papers} GB" if papers else "not possible",
            ]
        )
    columns = ["experiment, feature_dim, num_classes, batch size", "learned", "nearest ETF", "the paper's route"]
    return _table([*columns, "memory, learned", "memory, nearest ETF", "the paper's GPU memory"], rows)


def solves(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Forward and backward of one solve, by method."""
    methods = {
        "ours": "this library",
        "autograd through svd": "autograd through `torch.linalg.svd`",
        "the paper's route": "the paper's route",
    }
    by_size: dict[tuple[int, int], dict[str, str]] = {}
    for row in measured:
        by_size.setdefault((row["feature_dim"], row["num_classes"]), {})[row["method"]] = _solve_text(row)
    rows = [[f"{dim}, {classes}", *(texts[method] for method in methods)] for (dim, classes), texts in by_size.items()]
    return _table(["feature_dim, num_classes", *methods.values()], rows)


def ratios(measured: Sequence[dict[str, Any]]) -> list[str]:
    """Forward and backward over one thin SVD of the same matrix."""
    deltas = sorted({row["delta"] for row in measured}, reverse=True)
    names = list(dict.fromkeys(row["singular values"] for row in measured))
    of = {(row["singular values"], row["delta"]): row["forward and backward"] / row["svd"] for row in measured}
    rows = [[name, *(f"{of[name, delta]:.2f}" if (name, delta) in of else NOTHING for delta in deltas)] for name in names]
    return _table(["singular values of the class means", *(f"proximal weight {delta:g}" for delta in deltas)], rows)


def _level_of_all(experiment: Experiment) -> int:
    """The highest train accuracy, of those that the report looks at, that all runs came to; the lowest if there is none."""
    runs = [run for head in experiment.heads for run in experiment.of(head)]
    reached = {level: when_reached(runs, level) for level in LEVELS}
    return max((level for level, when in reached.items() if when and when.reached == len(runs)), default=LEVELS[0])


def _reached(experiment: Experiment, head: str, level: int) -> str:
    when = when_reached(experiment.of(head), level)
    if when is None:
        return NOTHING
    return figure(when.epochs.median) if when.epochs.low == when.epochs.high else spread_text(when.epochs)


def _step_text(cost: HeadCost | None) -> str:
    if cost is None or cost.forward_ms is None:
        return (cost and cost.note) or NOTHING
    if cost.backward_ms is None:
        return f"{amount(cost.forward_ms)} ms without gradient"
    return f"{amount(cost.forward_ms + cost.backward_ms)} ms"


def _solve_text(row: dict[str, Any]) -> str:
    if "forward and backward" in row:
        return f"{amount(round(1e3 * row['forward and backward'], 1))} ms, {amount(round(row['megabytes'], 1))} MB"
    if "forward" in row:
        return f"{amount(round(1e3 * row['forward']))} ms without gradient"
    return str(row["refused"])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows)]
