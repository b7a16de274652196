"""The tables of heads on pretrained features, from `results/records/pretrained` and from experiments without run folders.

They have the form of the tables in `results.tables`.
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.records import TEST_TOP1, SearchRecord, read_records
from guided_collapse.experiments.report.formats import NOTHING, short_text
from guided_collapse.experiments.report.styles import in_order, label
from guided_collapse.experiments.report.summaries import by_experiment, spread
from results.tables import LINEAR, Rows, choices, final_accuracy, markdown_lines

KINDS = {
    "clinc150-probe": "CLINC150, frozen vectors",
    "clinc150": "CLINC150, frozen vectors and neck",
    "clinc150-trained": "CLINC150, trained vectors and neck",
    "omniglot-lite0-probe": "Omniglot, frozen network",
    "omniglot-lite0": "Omniglot, frozen network and neck",
    "omniglot-tuned": "Omniglot, whole network",
}
TRIALS = 1000  # the seed of trials
SCORES = {"auroc_max_logit": "largest logit", "auroc_distance": "distance to the nearest class mean"}


class Setting(NamedTuple):
    """The training data, the number of samples per class, and test accuracy in percent by head and seed."""

    kind: str
    per_class: int
    accuracy: Mapping[str, Mapping[int, float]]

    @property
    def title(self) -> str:
        """A title for the table row of the setting."""
        return f"{KINDS[self.kind]}, {self.per_class} of each class"


def all_tables(records: Path) -> dict[str, list[str]]:
    """Returns every table by its name, as lines of Markdown."""
    found = read_records([records / "pretrained"])
    trained, others = (json.loads((records / f"clinc150-{name}.json").read_text()) for name in ("trained", "out-of-scope"))
    settings = [
        Setting(kind, int(number), {head: {run.seed: final_accuracy(run) for run in each.of(head)} for head in each.heads})
        for each in by_experiment(found.runs)
        for kind, _, number in [each.name.rpartition("-of-")]
    ]
    settings += [
        Setting(
            "clinc150-trained",
            int(number),
            {head: {seed: 100 * tests["top1"] for seed, tests in of.items()} for head, of in heads.items()},
        )
        for number, heads in fresh(trained).items()
    ]
    settings.sort(key=lambda setting: (list(KINDS).index(setting.kind), setting.per_class))
    searches = [*found.searches, *(as_search(trained, number) for number in trained["choice"])]
    tables = {
        "pretrained": ahead(settings),
        "pretrained accuracy": accuracy(settings),
        "pretrained choices": choices(sorted(searches, key=lambda search: order(search.experiment))),
        "out of scope": out_of_scope(trained, others),
        "metric learning": metric_learning(json.loads((records / "metric-learning.json").read_text())),
    }
    return {name: markdown_lines(rows) for name, rows in tables.items()}


def order(experiment: str) -> tuple[int, int]:
    """Returns the sort key of an experiment: its place in `KINDS`, and the number of samples per class."""
    kind, _, number = experiment.rpartition("-of-")
    return list(KINDS).index(kind), int(number)


def fresh(record: Mapping[str, Any]) -> dict[str, dict[str, dict[int, dict[str, float]]]]:
    """Returns the tests of the chosen settings with fresh seeds, by number of samples per class, head and seed."""
    return {
        number: {
            head: {
                run["seed"]: run["tests"]
                for run in record["trainings"]
                if (run["per_class"], run["head"], run["settings"]) == (int(number), head, settings) and run["seed"] != TRIALS
            }
            for head, settings in chosen.items()
        }
        for number, chosen in record["choice"].items()
    }


def as_search(record: Mapping[str, Any], number: str) -> SearchRecord:
    """Returns the trials and the choice for a number of samples per class, with the fields of a search that `choices` reads."""
    trials = [
        SimpleNamespace(head=run["head"], settings=run["settings"], measured={TEST_TOP1.name: run["tests"]["top1"]})
        for run in record["trainings"]
        if run["per_class"] == int(number) and run["seed"] == TRIALS
    ]
    name = f"clinc150-trained-of-{number}"
    return SimpleNamespace(experiment=name, grid=record["grid"], trials=trials, choice=record["choice"][number])  # type: ignore[return-value]


def ahead(settings: list[Setting]) -> Rows:
    """Returns points of test accuracy ahead of nn.Linear on the same seed, and on how many seeds a head is ahead."""
    heads = in_order({head for setting in settings for head in setting.accuracy} - {LINEAR})
    rows = [["points ahead of nn.Linear", *map(label, heads)]]
    for setting in settings:
        linear, cells = setting.accuracy[LINEAR], []
        for head in heads:
            gains = [value - linear[seed] for seed, value in setting.accuracy.get(head, {}).items()]
            cells.append(gains_text(gains) if gains else NOTHING)
        rows.append([setting.title, *cells])
    return rows


def gains_text(gains: list[float]) -> str:
    """Returns the median and range of gains as text, and how many are above zero."""
    over = f"{statistics.median(gains):+.2f} ({min(gains):+.2f} to {max(gains):+.2f})"
    return f"{over}, {sum(gain > 0 for gain in gains)} of {len(gains)}"


def accuracy(settings: list[Setting]) -> Rows:
    """Returns test accuracy, median and range over seeds, with settings as rows and heads as columns."""
    heads = in_order({head for setting in settings for head in setting.accuracy})
    rows = [["test accuracy, %", *map(label, heads)]]
    for setting in settings:
        found = (list(setting.accuracy.get(head, {}).values()) for head in heads)
        rows.append([setting.title, *(short_text(spread(values) if values else None, percent=True) for values in found)])
    return rows


def out_of_scope(trained: Mapping[str, Any], others: Mapping[str, Any]) -> Rows:
    """Returns how well two scores separate queries without an intent from test queries: areas under the ROC curve."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        f"clinc150-trained-of-{number}": {head: list(tests.values()) for head, tests in heads.items()}
        for number, heads in fresh(trained).items()
    }
    for name, tests in others["runs"].items():
        experiment, head, _ = name.split("/")
        found.setdefault(experiment, {}).setdefault(head, []).append(tests)
    heads = in_order({head for of in found.values() for head in of})
    rows = [["AUROC, %", "by", *map(label, heads)]]
    for experiment in sorted(found, key=order):
        kind, _, number = experiment.rpartition("-of-")
        first = Setting(kind, int(number), {}).title
        for score, words in SCORES.items():
            values = ([100 * tests[score] for tests in found[experiment].get(head, [])] for head in heads)
            rows.append([first, words, *(short_text(spread(each) if each else None, percent=True) for each in values)])
            first = ""
    return rows


def metric_learning(record: Mapping[str, Any]) -> Rows:
    """Returns top-1 by the classifier and by the nearest training embedding, and points ahead of nn.Linear on the same seed."""
    scores = {"top1": "by the largest logit, %", "nearest": "by the nearest neighbor, %"}
    rows = [["", "settings", *(cell for words in scores.values() for cell in (words, "ahead of nn.Linear"))]]
    found = {
        method: {
            run["seed"]: run["tests"]
            for run in record["trainings"]
            if (run["method"], run["settings"]) == (method, own) and run["seed"] != TRIALS
        }
        for method, own in record["choice"].items()
    }
    for method, own in record["choice"].items():
        cells = []
        for score in scores:
            values, linear = ({seed: 100 * tests[score] for seed, tests in found[each].items()} for each in (method, LINEAR))
            gains = [value - linear[seed] for seed, value in values.items()]
            cells += [short_text(spread(list(values.values())), percent=True), NOTHING if method == LINEAR else gains_text(gains)]
        words = ", ".join(f"{name} {value:g}" for name, value in own.items())
        rows.append([label(method) if method in HEADS else f"`{method}`", words, *cells])
    return rows
