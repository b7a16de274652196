"""What was run, on what, and in what runs differ."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from guided_collapse.records.run import Run
from guided_collapse.records.text import short_commit
from guided_collapse.report.experiment import Experiment

PROTOCOLS = {
    "fair": ", every head with the same stratified batches and the same centring",
    "paper": ", every head as the paper has it",
}
# Named by the record itself, and different in every run.
OWN = frozenset({"experiment", "head", "seed"})


def configuration_rows(experiment: Experiment) -> list[tuple[str, str, bool]]:
    """Name and value of every field of the configuration, and whether runs differ in it (the value then names heads)."""
    names = dict.fromkeys(name for run in experiment.runs for name in run.configuration if name not in OWN)
    rows = []
    for name in names:
        heads: dict[str, list[str]] = {}
        for run in experiment.runs:
            heads.setdefault(_text(run.configuration.get(name)), []).append(run.head)
        if len(heads) == 1:
            rows.append((name, next(iter(heads)), False))
        else:
            parts = [f"{value} ({', '.join(dict.fromkeys(found))})" for value, found in heads.items()]
            rows.append((name, "; ".join(parts), True))
    return rows


def machines(runs: Iterable[Run]) -> list[tuple[str, str, str, int]]:
    """Hardware, versions and commit, and how many runs have them."""
    found: dict[tuple[str, str, str], int] = {}
    for run in runs:
        key = (listed(run.hardware), listed(run.versions), short_commit(run.commit or "not recorded"))
        found[key] = found.get(key, 0) + 1
    return [(*key, count) for key, count in found.items()]


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
