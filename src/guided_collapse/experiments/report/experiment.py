"""The runs of one experiment: what was run, on what, and in what runs differ."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from guided_collapse.experiments.records.declared.quantities import Quantity
from guided_collapse.experiments.records.declared.references import best_margin
from guided_collapse.experiments.records.run import Run
from guided_collapse.experiments.records.text import short_commit
from guided_collapse.experiments.report.styles import in_order

PROTOCOLS = {
    "fair": ", every head with the same stratified batches and, but for nn.Linear, the same centering",
    "paper": ", every head as the paper has it",
}
# Named by the record itself, and different in every run.
OWN = frozenset({"experiment", "head", "seed"})


@dataclass(frozen=True)
class Experiment:
    """All runs of one name, ordered by head and seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def heads(self) -> list[str]:
        """The heads that were run, in the order of the report."""
        return in_order(run.head for run in self.runs)

    @property
    def unconstrained(self) -> bool:
        """Whether the features are free variables, the paper's UFM."""
        return self.name.startswith("ufm") or any(run.configuration.get("backbone") == "unconstrained" for run in self.runs)

    @property
    def reaches_the_bound(self) -> bool:
        """Whether the lower bound of the loss is known, and reached at collapse: where there is room for a simplex ETF."""
        return any(run.loss_lower_bound is not None and run.feature_dim >= run.num_classes - 1 for run in self.runs)

    @property
    def has_test(self) -> bool:
        """Whether there are test samples."""
        return any(run.num_test > 0 for run in self.runs)

    def of(self, head: str) -> list[Run]:
        """The runs of a head, by seed, without those that failed."""
        return [run for run in self.all_of(head) if run.state != "failed"]

    def all_of(self, head: str) -> list[Run]:
        """The runs of a head, by seed."""
        return sorted((run for run in self.runs if run.head == head), key=lambda run: run.seed)

    def references(self, quantity: Quantity) -> list[float]:
        """The values that theory gives for a quantity: one, unless runs differ in scale or number of classes."""
        values = {theory(quantity, run.num_classes, run.feature_dim, run.loss_lower_bound) for run in self.runs}
        return sorted(value for value in values if value is not None)


def theory(quantity: Quantity, num_classes: int, feature_dim: int, loss_lower_bound: float | None) -> float | None:
    """The value that theory gives for a quantity of a run; None if it gives none."""
    if quantity.reference == "loss_lower_bound":
        return loss_lower_bound
    return best_margin(num_classes, feature_dim) if quantity.reference == "ideal_margin" else None


def by_experiment(runs: Iterable[Run]) -> list[Experiment]:
    """The runs by experiment, ordered by name, the unconstrained ones by their number of classes."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.experiment, []).append(run)
    experiments = [Experiment(name, tuple(group)) for name, group in groups.items()]
    return sorted(experiments, key=lambda e: (e.unconstrained, e.runs[0].num_classes if e.unconstrained else 0, e.name))


class ConfigurationRow(NamedTuple):
    """Name and value of a field of the configuration, and whether runs differ in it; the value then names heads."""

    name: str
    value: str
    differs: bool


class Machine(NamedTuple):
    """What runs ran on and with, in words, and how many they are."""

    hardware: str
    versions: str
    commit: str
    runs: int


def configuration_rows(experiment: Experiment) -> list[ConfigurationRow]:
    """Every field of the configuration of some run."""
    names = dict.fromkeys(name for run in experiment.runs for name in run.configuration if name not in OWN)
    rows = []
    for name in names:
        heads: dict[str, list[str]] = {}
        for run in experiment.runs:
            heads.setdefault(_text(run.configuration.get(name)), []).append(run.head)
        if len(heads) == 1:
            rows.append(ConfigurationRow(name, next(iter(heads)), False))
        else:
            parts = [f"{value} ({', '.join(dict.fromkeys(found))})" for value, found in heads.items()]
            rows.append(ConfigurationRow(name, "; ".join(parts), True))
    return rows


def machines(runs: Iterable[Run]) -> list[Machine]:
    """Everything that some run ran on."""
    found: dict[tuple[str, str, str], int] = {}
    for run in runs:
        key = (listed(run.hardware), listed(run.versions), short_commit(run.commit or "not recorded"))
        found[key] = found.get(key, 0) + 1
    return [Machine(*key, count) for key, count in found.items()]


def protocols(experiment: Experiment) -> list[str]:
    """The protocols of an experiment, each with its heads if there is more than one, and what sets heads apart."""
    heads: dict[str, list[str]] = {}
    for run in experiment.runs:
        heads.setdefault(run.protocol, []).append(run.head)
    several = len(heads) > 1
    lines = [
        f"{name}{PROTOCOLS.get(name, '')}" + (f" ({', '.join(dict.fromkeys(found))})" if several else "")
        for name, found in heads.items()
    ]
    differences = dict.fromkeys((run.head, difference) for run in experiment.runs for difference in run.protocol_differences)
    every = {text for _, text in differences if all((head, text) in differences for head in experiment.heads)}
    lines += [text for text in dict.fromkeys(text for _, text in differences) if text in every]
    return lines + [f"{head}: {text}" for head, text in differences if text not in every]


def span(values: Sequence[int]) -> str:
    """`10`, or `10 to 20` where runs differ."""
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def listed(entries: Mapping[str, Any]) -> str:
    """Names and values on one line."""
    return ", ".join(f"{name} {_text(value)}" for name, value in entries.items()) or "not recorded"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
