"""A fair hyperparameter search for heads, planned before it runs.

Every head gets the same grid and the same number of epochs, and is validated on held-out training images, not on test images.
The best setting of each head is then trained on all training images with fresh seeds, and tested once.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from guided_collapse.experiments.comparison import Comparison, run_all
from guided_collapse.experiments.configuration import HEAD_FIELDS, Configuration, HeadName, Placement
from guided_collapse.experiments.errors import RequestError, WorkError, check_choice
from guided_collapse.experiments.files import locked, write_json
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.records import SEARCH, TRIALS, SearchRecord, Trial, setting_text
from guided_collapse.experiments.run import RunFolder, read_epoch_records, read_record, run_status

SEARCHED = ("learning_rate", "scale", "weight_decay", "momentum", "gain", "proximal_weight", "every", "batch_size")
IDLE = {"agd": ("learning_rate", "weight_decay", "momentum"), "sgd": ("gain",), "adamw": ("gain", "momentum")}
CHOSEN = "chosen"  # the folder of the runs with fresh seeds
RULE = (
    "the setting with the highest accuracy on the validation images after the last epoch, on average over the seeds of the trials; "
    "of equals the one with the lowest loss there, then the first of the grid; a setting that diverged is never chosen"
)


@dataclass(frozen=True)
class SearchOutcome:
    """A finished search; `fresh` holds the runs with the chosen settings and fresh seeds."""

    folder: Path
    record: SearchRecord
    fresh: Comparison


def planned_search(
    configuration: Configuration,
    heads: Sequence[HeadName],
    grid: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    trial_seeds: Sequence[int] = (1000,),
    trial_epochs: int | None = None,
    validation_fraction: float = 0.2,
) -> SearchRecord:
    """Returns the plan of a search, for `search` to run.

    Args:
        configuration: settings shared by all runs.
        heads: names of heads.
        grid: the values to try for each field; fields must be in `SEARCHED`, and the search tries every combination.
        seeds, trial_seeds, trial_epochs, validation_fraction: as in `SearchRecord`; by default, a trial has `configuration.epochs`.

    Raises:
        RequestError: for missing or invalid values, seeds that are also trial seeds, or unconstrained features (no test set).
    """
    if configuration.is_unconstrained:
        raise RequestError("a search needs images to test on; got unconstrained features. Choose another experiment.")
    if not heads or not seeds or not trial_seeds or not grid or not all(grid.values()):
        raise RequestError(
            "a search needs heads, seeds, trial seeds and a grid, as in --grid learning_rate=0.05,0.1; "
            f"got {list(heads)}, {list(seeds)}, {list(trial_seeds)} and {dict(grid)}."
        )
    if both := set(seeds) & set(trial_seeds):
        raise RequestError(f"seeds must differ from the trial seeds; got {sorted(both)} in both. Choose other seeds.")
    for name in grid:
        legal = [field for field in SEARCHED if field not in IDLE[configuration.optimizer]]
        check_choice(f"a field of the grid with --optimizer {configuration.optimizer}", name, legal)
    epochs = configuration.epochs if trial_epochs is None else trial_epochs
    for seed in (*trial_seeds, *seeds):  # invalid values raise RequestError here
        replace(configuration, seed=seed, epochs=epochs, validation_fraction=validation_fraction)
    plan = SearchRecord(
        experiment=configuration.experiment,
        configuration=configuration.resolved().to_dict(),
        heads=tuple(dict.fromkeys(heads)),
        grid={name: list(dict.fromkeys(values)) for name, values in grid.items()},
        validation_fraction=validation_fraction,
        trial_epochs=epochs,
        trial_seeds=tuple(dict.fromkeys(trial_seeds)),
        seeds=tuple(dict.fromkeys(seeds)),
        rule=RULE,
        planned=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    _trial_configurations(plan)  # invalid values in the grid raise RequestError here
    return plan


def search(plan: SearchRecord, placement: Placement, *, jobs: int = 1) -> SearchOutcome:
    """Runs the trials, chooses settings, and trains with them and the fresh seeds. Finished runs are not repeated.

    Args:
        plan: the plan that `planned_search` returns, which is first written to disk.
        placement: where to run. The search writes to the folder `<experiment>-search` in the output folder.
        jobs: number of concurrent runs.

    Raises:
        RequestError: if the folder holds a search with a different plan.
        WorkError: if a trial failed for a reason other than divergence.
    """
    folder = placement.out / f"{plan.experiment}-search"
    file = folder / SEARCH
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not file.exists():
            write_json(file, asdict(plan))
    record = read_record(file, SearchRecord)
    if changed := [name for name, value in plan.plan.items() if record.plan[name] != value]:
        raise RequestError(
            f"{file} holds a search with a different {', '.join(changed)}. A plan cannot change once its search has started: "
            "choose another --out or --experiment, or move the folder."
        )
    if not record.choice:
        record = replace(record, trials=_trials(record, placement, folder, jobs))
        record = replace(record, choice=_choice(record), decided=datetime.now(UTC).isoformat(timespec="seconds"))
        write_json(file, asdict(record))
    shared = Configuration(**record.configuration)
    fresh = [replace(shared, head=head, seed=seed, **record.choice[head]) for seed in record.seeds for head in record.heads]
    done = run_all(fresh, replace(placement, out=folder / CHOSEN), jobs=jobs)
    return SearchOutcome(folder, record, replace(done, searched=True))


def settings_of_search(folder: Path | None, heads: Sequence[HeadName]) -> dict[HeadName, Mapping[str, Any]]:
    """Returns the settings that a search chose for each head, from the `search.json` in `folder`; empty if `folder` is None."""
    if folder is None:
        return {}
    if not (folder / SEARCH).is_file():
        raise RequestError(f"settings must come from the folder of a search; got {folder}, which has no {SEARCH}.")
    choice = read_record(folder / SEARCH, SearchRecord).choice
    if missing := [head for head in heads if head not in choice]:
        raise RequestError(
            f"the search in {folder} chose settings for {', '.join(choice) or 'no head yet'}; got heads {', '.join(missing)}. "
            "Leave out --settings-of, or those heads."
        )
    return {head: choice[head] for head in heads}


def settings_of(head: HeadName, grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns every combination of the grid's fields that affect the head, in the order of the grid."""
    idle = set(HEAD_FIELDS) - set(HEADS[head].takes)
    effective = {name: values for name, values in grid.items() if name not in idle}
    return [dict(zip(effective, chosen, strict=True)) for chosen in itertools.product(*effective.values())]


def _trial_configurations(plan: SearchRecord) -> dict[Configuration, dict[str, Any]]:
    """Returns the settings of every trial, by its configuration; each setting is a separate experiment."""
    at_the_end = {"epochs": plan.trial_epochs, "measure_every": plan.trial_epochs, "measure_first": 0, "trace": False}
    shared = Configuration(**{**plan.configuration, **at_the_end, "validation_fraction": plan.validation_fraction})
    return {
        replace(shared, experiment=setting_text(settings), head=head, seed=seed, **settings): settings
        for seed, head in itertools.product(plan.trial_seeds, plan.heads)
        for settings in settings_of(head, plan.grid)
    }


def _trials(plan: SearchRecord, placement: Placement, folder: Path, jobs: int) -> tuple[Trial, ...]:
    wanted = _trial_configurations(plan)
    done = run_all(list(wanted), replace(placement, out=folder / TRIALS), jobs=jobs)
    for run, reason in done.failed:
        # Once a run has started, a plain ValueError means that features are no longer finite.
        if not (run_status(run.path).reason or "").startswith("ValueError:"):
            raise WorkError(
                f"the trial in {run.path} failed, so no settings were chosen: {reason.rstrip('.')}. Repeat the command."
            )
    trials = []
    for configuration, settings in wanted.items():
        run = RunFolder.of(configuration, folder / TRIALS)
        last = read_epoch_records(run.path)[-1].measured("test") if run in done.finished else None
        measured = None if last is None else {name: last.get(name) for name in ("top1", "loss")}
        trials.append(Trial(configuration.head, settings, configuration.seed, measured))
    return tuple(trials)


def _choice(record: SearchRecord) -> dict[str, Any]:
    """Returns the best settings of each head, according to the rule."""
    choice = {}
    for head in record.heads:
        ranked = []
        for settings in settings_of(head, record.grid):
            trials = [trial.measured or {} for trial in record.trials if trial.head == head and trial.settings == settings]
            accuracies, losses = ([measured.get(name) for measured in trials] for name in ("top1", "loss"))
            if None not in (*accuracies, *losses):  # a missing value means that a trial diverged
                right = round(math.fsum(value or 0.0 for value in accuracies), 9)  # removes rounding differences between equal sums
                ranked.append((-right, math.fsum(value or 0.0 for value in losses), settings))
        if not ranked:
            raise WorkError(f"at least one setting of {head} must not diverge; all did. Try smaller learning rates.")
        *_, choice[head] = min(ranked, key=lambda entry: entry[:2])
    return choice
