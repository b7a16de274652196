"""`guided-collapse compare [PRESET] FLAGS`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.cli.command import DONE, FAILED
from guided_collapse.experiments.cli.requests import checked, named_fields, parsed, split_words, starting_point
from guided_collapse.experiments.training.settings.checks import at_least, check_ranges
from guided_collapse.experiments.configuration import Configuration, HeadName
from guided_collapse.experiments.configuration import Placement


@dataclass(frozen=True)
class CompareRequest:
    """Train every head with every seed, print a table, and write a report. Runs that are finished are not repeated."""

    configuration: Configuration
    placement: Placement
    heads: tuple[HeadName, ...] = ("linear", "cosine", "fixed-etf", "nearest-etf")
    """Heads to compare."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds to train each head with."""
    settings_of: Path | None = None
    """Folder of a search, whose choice each head takes; other flags are for all heads."""
    jobs: int = 1
    """Number of runs at a time; with CUDA each gets its own devices."""

    def __post_init__(self) -> None:
        for name in ("heads", "seeds"):
            if not getattr(self, name):
                raise RequestError(f"{name} must be one or more; got none. Name them after --{name}, or leave it out.")
        check_ranges(self, {"jobs": at_least(1)})
        for seed in self.seeds:
            replace(self.configuration, seed=seed)  # which checks it


def run(words: list[str]) -> int:
    """Runs the grid and prints its table."""
    name, flags = split_words(words)
    wanted = compare_request(name, flags)
    from guided_collapse.experiments.comparison import compare, comparison_table
    from guided_collapse.experiments.data.known import check_source
    from guided_collapse.experiments.report.write import write_report
    from guided_collapse.experiments.search import settings_of_search
    from guided_collapse.experiments.training.launch import check_launch

    # Once, instead of a failure of every run.
    with requested():
        check_launch(wanted.placement, wanted.configuration.precision)
        if not wanted.configuration.is_unconstrained:
            check_source(wanted.configuration.data)
        settings = settings_of_search(wanted.settings_of, wanted.heads) if wanted.settings_of else {}
        searched = {field for own in settings.values() for field in own}
        if both := sorted(searched & named_fields(flags)):
            raise RequestError(f"{', '.join(both)} must come from the search or from a flag; got both. Leave out one of them.")
    comparison = compare(wanted.configuration, wanted.heads, wanted.seeds, wanted.placement, settings=settings, jobs=wanted.jobs)
    if comparison.finished:
        print(comparison_table(comparison))
        folder = wanted.placement.out / wanted.configuration.experiment
        print(f"\n{write_report([folder], folder / 'report').page}")
    for failed, reason in comparison.failed:
        print(f"failed: {failed.path}: {reason}", file=sys.stderr)
    return FAILED if comparison.failed else DONE


def compare_request(name: str | None, flags: Sequence[str]) -> CompareRequest:
    """What `compare [PRESET] FLAGS` asks for.

    Raises:
        RequestError: for an unknown preset or head, a single head or seed, or flags that do not fit together.
    """
    refuse_single("compare", flags)
    default = CompareRequest(starting_point(name, flags), Placement())
    wanted = parsed(default, f"compare {name or '[PRESET]'}", flags)
    return replace(wanted, configuration=checked(wanted.configuration, wanted.placement, flags, wanted.heads))


def refuse_single(command: str, flags: Sequence[str]) -> None:
    """Refuses the flags for one head or seed, which are those of `train`.

    Raises:
        RequestError: with the flags for several.
    """
    for flag, instead in (("--head", "--heads"), ("--seed", "--seeds")):
        if any(given == flag or given.startswith(f"{flag}=") for given in flags):
            raise RequestError(f"{command} takes {instead}, with one or more values; got {flag}.")
