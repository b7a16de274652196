"""`guided-collapse search [PRESET] --grid FIELD=VALUE,VALUE... FLAGS`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.cli.command import DONE, FAILED
from guided_collapse.experiments.cli.compare import refuse_single
from guided_collapse.experiments.cli.requests import asks_for_help, checked, parsed, split_words, starting_point
from guided_collapse.experiments.training.settings.checks import at_least, check_ranges
from guided_collapse.experiments.configuration import Configuration, HeadName
from guided_collapse.experiments.configuration import Placement

if TYPE_CHECKING:
    from guided_collapse.experiments.records.schema import SearchRecord


@dataclass(frozen=True)
class SearchRequest:
    """Try every head with every setting of a grid on validation images, then train the best setting of each with fresh seeds.

    The plan is written to search.json first. A search that was interrupted goes on if the same command is given again.
    """

    configuration: Configuration
    placement: Placement
    grid: tuple[str, ...] = ()
    """Values to try, as FIELD=VALUE,VALUE: learning_rate=0.05,0.1 scale=5,10. Every combination is a trial."""
    heads: tuple[HeadName, ...] = ("linear", "cosine", "fixed-etf", "nearest-etf")
    """Heads to search for."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Fresh seeds to train the best setting of each head with."""
    trial_seeds: tuple[int, ...] = (1000,)
    """Seeds of every trial."""
    trial_epochs: int | None = None
    """Number of epochs of a trial; by default as many as of the final runs."""
    validation_share: float = 0.2
    """Fraction of the training images of each class that trials are tested on."""
    jobs: int = 1
    """Number of runs at a time; with CUDA each gets its own devices."""

    def __post_init__(self) -> None:
        check_ranges(self, {"jobs": at_least(1)})


def run(words: list[str]) -> int:
    """Runs the search, prints the tables of trials and of fresh seeds, and writes a report."""
    name, flags = split_words(words)
    wanted = search_request(name, flags)
    from guided_collapse.experiments.comparison import comparison_table
    from guided_collapse.experiments.data.known import check_source
    from guided_collapse.experiments.report.tables.formats import plain_text
    from guided_collapse.experiments.report.tables.search import search_table
    from guided_collapse.experiments.report.write import write_report
    from guided_collapse.experiments.search import search
    from guided_collapse.experiments.training.launch import check_launch

    with requested():
        check_launch(wanted.placement, wanted.configuration.precision)
        check_source(wanted.configuration.data)
        plan = plan_of(wanted)
    outcome = search(plan, wanted.placement, jobs=wanted.jobs)
    tried = search_table([outcome.record])
    print(plain_text(tried) if tried else "")
    if outcome.fresh.finished:
        print(f"{comparison_table(outcome.fresh)}")
        print(f"\n{write_report([outcome.folder], outcome.folder / 'report').page}")
    for failed, reason in outcome.fresh.failed:
        print(f"failed: {failed.path}: {reason}", file=sys.stderr)
    return FAILED if outcome.fresh.failed else DONE


def search_request(name: str | None, flags: Sequence[str]) -> SearchRequest:
    """What `search [PRESET] FLAGS` asks for.

    Raises:
        RequestError: for an unknown preset or head, a single head or seed, no grid, or flags that do not fit together.
    """
    refuse_single("search", flags)
    default = SearchRequest(starting_point(name, flags), Placement())
    wanted = parsed(default, f"search {name or '[PRESET]'}", flags)
    if not wanted.grid and not asks_for_help(flags):
        raise RequestError("search needs a grid; got none. Give --grid FIELD=VALUE,VALUE, as in --grid learning_rate=0.05,0.1,0.2.")
    return replace(wanted, configuration=checked(wanted.configuration, wanted.placement, flags, wanted.heads))


def plan_of(wanted: SearchRequest) -> "SearchRecord":
    """The plan that a request asks for; refused as `planned_search` does."""
    from guided_collapse.experiments.search import planned_search

    return planned_search(
        wanted.configuration,
        wanted.heads,
        grid_of(wanted.grid),
        seeds=wanted.seeds,
        trial_seeds=wanted.trial_seeds,
        trial_epochs=wanted.trial_epochs,
        validation_fraction=wanted.validation_share,
    )


def grid_of(words: Sequence[str]) -> dict[str, list[Any]]:
    """The grid that words like "learning_rate=0.05,0.1" say.

    Raises:
        RequestError: for words of another form, or a field that stands twice.
    """
    grid: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.replace("-", "_")
        if not equals or not values or name in grid:
            raise RequestError(f"--grid takes FIELD=VALUE,VALUE, each field once; got {' '.join(words)!r}.")
        grid[name] = [_number(value, word) for value in values.split(",")]
    return grid


def _number(text: str, word: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"the values of a grid must be numbers; got {text!r} in {word!r}.") from None
