"""The runs of one experiment."""

from collections.abc import Iterable
from dataclasses import dataclass

from guided_collapse.records.quantities import Quantity
from guided_collapse.records.run import Run
from guided_collapse.report.looks import in_order


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
        """The values that theory gives for a quantity: one, unless runs differ in temperature or number of classes."""
        if quantity.reference == "loss_lower_bound":
            return sorted({run.loss_lower_bound for run in self.runs if run.loss_lower_bound is not None})
        if quantity.reference == "ideal_margin":
            return sorted({run.num_classes / (run.num_classes - 1) for run in self.runs})
        return []


def by_experiment(runs: Iterable[Run]) -> list[Experiment]:
    """The runs by experiment, ordered by name, the unconstrained ones by their number of classes."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.experiment, []).append(run)
    experiments = [Experiment(name, tuple(group)) for name, group in groups.items()]
    return sorted(experiments, key=lambda e: (e.unconstrained, e.runs[0].num_classes if e.unconstrained else 0, e.name))
