"""Heads that are tried by the protocol of the comparisons without being part of the package: same network, batches and seeds.

`python -m results.variants` and `python -m results.steps` say what they try; both take

    PRESET --settings-of SEARCH [--name NAME] [--images-per-class N] [--epochs N] [--seeds 0 1 2] [--out DIR] [--record FILE]

and add the test accuracy of every measured epoch to their record.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from guided_collapse.records.declared.heads import HEADS, declare

RECORDS = Path(__file__).parent / "records"
LAGGED = "implicit-lagged"


@dataclass(frozen=True)
class Trial:
    """A head to try."""

    kind: type
    """Called with feature_dim, num_classes, temperature, a generator, and the options."""
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
            replace(
                HEADS[LAGGED], name=name, label=description, built_by=made_by, takes=("temperature",), options=dict(trial.options)
            )
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
    parser.add_argument("--settings-of", type=Path, required=True, help="folder of a search")
    parser.add_argument("--name", help="in the record and of the folder of runs; by default the preset's")
    parser.add_argument("--images-per-class", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--record", type=Path, default=RECORDS / f"{what}.json")
    wanted = parser.parse_args(words)
    name = wanted.name or wanted.preset
    descriptions = declare_all(trials, f"results.{what}")
    # After the declarations, which the configuration reads when it is imported.
    from guided_collapse.experiments import Placement, compare, preset
    from guided_collapse.experiments.search import settings_of_search

    chosen = settings_of_search(wanted.settings_of, sorted({trial.settings_of for trial in trials.values()}))
    given = {name: getattr(wanted, name) for name in ("images_per_class", "epochs") if getattr(wanted, name) is not None}
    shared = replace(preset(wanted.preset), experiment=f"{name}-{what}", measure_first=3, **given)
    settings = {head: chosen[trials[description].settings_of] for head, description in descriptions.items()}
    done = compare(shared, list(descriptions), wanted.seeds, Placement(out=wanted.out, quiet=True), settings=settings)
    measured: dict[str, list[Any]] = {description: [] for description in descriptions.values()}
    for run in done.finished:
        accuracies = {str(record.epoch): record.test["top1"] for record in run.records() if record.test}
        seed = int(run.path.name.removeprefix("seed-"))
        measured[descriptions[run.path.parent.name]].append({"seed": seed, "test_top1": accuracies})
    record = json.loads(wanted.record.read_text()) if wanted.record.exists() else {}
    record[name] = {"preset": wanted.preset, **given, "settings": chosen, "runs": measured}
    wanted.record.write_text(json.dumps(record, indent=1) + "\n")
    if done.failed:
        sys.exit("\n".join(f"failed: {run.path}: {reason}" for run, reason in done.failed))
