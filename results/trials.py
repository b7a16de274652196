"""Heads that are tried by the protocol of the comparisons without being part of the package: same network, batches and seeds.

`python -m results.variants` and `python -m results.steps` say what they try; both take

    PRESET --settings-of SEARCH [--name NAME] [--images-per-class N] [--epochs N] [--seeds 0 1 2] [--out DIR] [--record FILE]

and add the test accuracy of every measured epoch to their record. `--grid FIELD=VALUE,VALUE ...` in the place of `--settings-of`
is a search of their own: each takes what is best for it on validation images.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guided_collapse.experiments.heads import HEADS, declare

if TYPE_CHECKING:
    from guided_collapse.experiments import Comparison, Configuration, Placement

RECORDS = Path(__file__).parent / "records"
LAGGED = "nearest-etf-lagged"


@dataclass(frozen=True)
class Trial:
    """A head to try."""

    kind: type
    """Called with feature_dim, num_classes, scale, a generator, and the options."""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings_of: str = LAGGED
    """The head for which the search has chosen its settings."""


def declare_all(trials: Mapping[str, Trial], module: str) -> dict[str, str]:
    """Declares every one as a head, and returns what they are by the names of these heads."""
    found = {}
    for place, (description, trial) in enumerate(trials.items()):
        name = f"trial-{place}"
        made_by = f"{trial.kind.__module__}:{trial.kind.__name__}".replace("__main__", module)
        declare(
            replace(HEADS[LAGGED], name=name, label=description, built_by=made_by, takes=("scale",), options=dict(trial.options))
        )
        found[name] = description
    return found


def main(trials: Mapping[str, Trial], what: str, words: Sequence[str] | None = None) -> None:
    """Trains all and adds to the record.

    Args:
        trials: by what they are.
        what: the module that has them, and its record.
        words: of the command line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m results.{what}")
    parser.add_argument("preset")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--settings-of", type=Path, help="folder of a search")
    source.add_argument("--grid", nargs="+", help="FIELD=VALUE,VALUE: values to try for each")
    parser.add_argument("--name", help="in the record and of the folder of runs; by default the preset's")
    parser.add_argument("--images-per-class", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    # A folder deeper than runs of the package, which alone are collected.
    parser.add_argument("--out", type=Path, default=Path("runs/trials"))
    parser.add_argument("--record", type=Path, default=RECORDS / f"{what}.json")
    wanted = parser.parse_args(words)
    name = wanted.name or wanted.preset
    descriptions = declare_all(trials, f"results.{what}")
    # After the declarations, which the configuration reads when it is imported.
    from guided_collapse.experiments import Placement, preset

    given = {name: getattr(wanted, name) for name in ("images_per_class", "epochs") if getattr(wanted, name) is not None}
    shared = replace(preset(wanted.preset), experiment=f"{name}-{what}", measure_first=3, **given)
    placement = Placement(out=wanted.out, quiet=True)
    if wanted.grid:
        chosen, done = _searched(shared, descriptions, wanted.grid, wanted.seeds, placement)
    else:
        settings_of = {head: trials[description].settings_of for head, description in descriptions.items()}
        chosen, done = _with_settings(shared, settings_of, wanted.settings_of, wanted.seeds, placement)
    measured: dict[str, list[Any]] = {description: [] for description in descriptions.values()}
    for run in done.finished:
        accuracies = {str(record.epoch): record.test["top1"] for record in run.records() if record.test}
        seed = int(run.path.name.removeprefix("seed-"))
        measured[descriptions[run.path.parent.name]].append({"seed": seed, "test_top1": accuracies})
    record = json.loads(wanted.record.read_text()) if wanted.record.exists() else {}
    record[name] = {"preset": wanted.preset, **given, "grid": wanted.grid, "settings": chosen, "runs": measured}
    wanted.record.write_text(json.dumps(record, indent=1) + "\n")
    if done.failed:
        sys.exit("\n".join(f"failed: {run.path}: {reason}" for run, reason in done.failed))


def _searched(
    shared: "Configuration", descriptions: Mapping[str, str], grid: Sequence[str], seeds: Sequence[int], placement: "Placement"
) -> tuple[dict[str, Any], "Comparison"]:
    """What a search chooses for each of them, by what they are, and their runs with fresh seeds."""
    from guided_collapse.experiments.cli.commands import grid_of
    from guided_collapse.experiments.grid_search import planned_search, search

    outcome = search(planned_search(shared, list(descriptions), grid_of(grid), seeds=seeds), placement)
    return {descriptions[head]: settings for head, settings in outcome.record.choice.items()}, outcome.fresh


def _with_settings(
    shared: "Configuration", settings_of: Mapping[str, str], folder: Path, seeds: Sequence[int], placement: "Placement"
) -> tuple[dict[str, Any], "Comparison"]:
    """What the search in the folder has chosen for other heads, by their names, and the runs with it."""
    from guided_collapse.experiments import compare
    from guided_collapse.experiments.grid_search import settings_of_search

    chosen = settings_of_search(folder, sorted(set(settings_of.values())))
    settings = {head: chosen[other] for head, other in settings_of.items()}
    return dict(chosen), compare(shared, list(settings_of), seeds, placement, settings=settings)
