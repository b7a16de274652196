"""Variants of the nearest head, tried before any became an option, by the protocol of the comparisons.

    python -m results.variants PRESET --settings-of SEARCH [--images-per-class N] [--epochs N] [--seeds 0 1 2] [--out DIR]

Trains the lagged head and each variant of it with the settings that the search has chosen for the lagged head, and adds the test
accuracy of every measured epoch to `results/records/variants.json`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guided_collapse import LinearHead, NearestETFHead
from guided_collapse.heads.means.running_means import RunningMean
from guided_collapse.records.declared.heads import HEADS, declare

RECORD = Path(__file__).parent / "records" / "variants.json"
LAGGED = "implicit-lagged"


class Forgetful(NearestETFHead):
    """Class means in which a batch has at least some share, however long training has gone on."""

    def __init__(self, *sizes: int, smallest_share: float, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.class_means.smallest_share = smallest_share


class Settling(NearestETFHead):
    """A frame that stands still after some steps."""

    def __init__(self, *sizes: int, moves: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.moves = moves

    def _is_due(self, step: int) -> bool:
        return step <= self.moves

    def _follow(self, centred_class_means: Tensor, is_known: Tensor) -> None:
        if self._is_due(self._count_step()):
            self._keep(self._solve(centred_class_means), is_known)


class CentredFirst(NearestETFHead):
    """Features that are centred before they are put on the sphere, and not only after."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.before_sphere = RunningMean(self.feature_dim)

    def on_sphere(self, features: Tensor) -> Tensor:
        """As for all heads, once the mean is taken away."""
        features = features.float()
        if not self.training:
            return super().on_sphere(features - self.before_sphere.value)
        mean = features.mean(dim=0)
        self.before_sphere.update(mean.detach(), is_known=torch.tensor(True))
        return super().on_sphere(features - mean)


class LearnedFromFrame(LinearHead):
    """A learned layer, normalised as in the paper, whose first value is the nearest frame of the first steps."""

    def __init__(self, *sizes: int, moves: int, generator: torch.Generator, **options: Any) -> None:
        super().__init__(*sizes, centre=True, generator=generator, **options)
        # In a tuple, because a model has one head only.
        self.nearest = (NearestETFHead(*sizes, lagged=True, generator=generator, **options),)
        self.moves = moves

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        (nearest,) = self.nearest
        if int(nearest.class_means.steps) < self.moves:
            nearest(points.detach(), labels)
            with torch.no_grad():
                self.learned_weight.copy_(nearest.frame)
        return super()._training_logits(points, labels)


_LAGGED = {"lagged": True}
VARIANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "as it is": (NearestETFHead, _LAGGED),
    "a batch has a share of at least 0.01": (Forgetful, {"smallest_share": 0.01, **_LAGGED}),
    "a batch has a share of at least 0.1": (Forgetful, {"smallest_share": 0.1, **_LAGGED}),
    "the frame moves every 10 steps": (NearestETFHead, {"every": 10, **_LAGGED}),
    "the frame stands still after 100 steps": (Settling, {"moves": 100, **_LAGGED}),
    "centred before the sphere": (CentredFirst, _LAGGED),
    "a learned layer that starts as the frame of 100 steps": (LearnedFromFrame, {"moves": 100}),
}


def declare_all() -> dict[str, str]:
    """Declares every variant as a head, and returns what they are by the names of these heads."""
    found = {}
    for place, (description, (kind, options)) in enumerate(VARIANTS.items()):
        name = f"variant-{place}"
        made_by = f"{kind.__module__}:{kind.__name__}".replace("__main__", "results.variants")
        declare(replace(HEADS[LAGGED], name=name, label=description, built_by=made_by, takes=("temperature",), options=options))
        found[name] = description
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Trains all variants and adds to the record."""
    parser = argparse.ArgumentParser(prog="python -m results.variants", description=__doc__)
    parser.add_argument("preset")
    parser.add_argument("--settings-of", type=Path, required=True)
    parser.add_argument("--images-per-class", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs"))
    wanted = parser.parse_args(words)
    names = declare_all()
    # After the declarations, which the configuration reads when it is imported.
    from guided_collapse.experiments import Placement, compare, preset
    from guided_collapse.experiments.search import settings_of_search

    own = settings_of_search(wanted.settings_of, [LAGGED])[LAGGED]
    given = {name: getattr(wanted, name) for name in ("images_per_class", "epochs") if getattr(wanted, name) is not None}
    shared = replace(preset(wanted.preset), experiment=f"{wanted.preset}-variants", **given)
    settings = dict.fromkeys(names, own)
    done = compare(shared, list(names), wanted.seeds, Placement(out=wanted.out, quiet=True), settings=settings)
    measured: dict[str, list[Any]] = {description: [] for description in names.values()}
    for run in done.finished:
        accuracies = {str(record.epoch): record.test["top1"] for record in run.records() if record.test}
        seed = int(run.path.name.removeprefix("seed-"))
        measured[names[run.path.parent.name]].append({"seed": seed, "test_top1": accuracies})
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record[wanted.preset] = {**given, **own, "variants": measured}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    for run, reason in done.failed:
        print(f"failed: {run.path}: {reason}")


if __name__ == "__main__":
    main()
