"""`guided-collapse resume RUN_DIR FLAGS`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.cli.requests import parsed, split_words
from guided_collapse.experiments.cli.train import TrainRequest, carried_out
from guided_collapse.experiments.records.schema import CONFIG
from guided_collapse.experiments.training.folder.facts import configuration_of
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.training.settings.checks import POSITIVE_COUNT, check_ranges
from guided_collapse.experiments.configuration import Placement


@dataclass(frozen=True)
class PlacementOfARun(Placement):
    """Where the run is continued; its folder stays the same."""

    out: Annotated[Path, tyro.conf.Fixed, tyro.conf.Suppress] = Path("runs")
    lengthen: Annotated[bool, tyro.conf.Fixed, tyro.conf.Suppress] = True


@dataclass(frozen=True)
class ResumeRequest:
    """Continue a run from its last checkpoint, or extend a finished one with --epochs."""

    placement: PlacementOfARun
    epochs: int | None = None
    """Extend the run to this many epochs."""

    def __post_init__(self) -> None:
        check_ranges(self, {"epochs": POSITIVE_COUNT})


def run(words: list[str]) -> int:
    """Goes on with a run, which may be asked to become longer."""
    return carried_out(resume_request(*split_words(words)))


def resume_request(name: str | None, flags: Sequence[str]) -> TrainRequest:
    """What `resume RUN_DIR FLAGS` asks for: the configuration that is there, or it with more epochs, wherever it is to run.

    Raises:
        RequestError: for a folder that is not that of a run, or has been moved out of its place, or a run that cannot be longer.
        DamageError: for a run whose configuration is damaged.
    """
    wanted = parsed(ResumeRequest(PlacementOfARun()), "resume RUN_DIR", flags)
    if name is None:
        raise RequestError("resume needs the folder of a run; got none. Usage: guided-collapse resume RUN_DIR")
    folder = Path(name)
    with requested():
        facts = RunFolder(folder).facts()
    configuration = configuration_of(facts)
    out = folder.resolve().parents[2]
    if RunFolder.of(configuration, out).path != folder.resolve():
        raise RequestError(
            f"a run is in a folder <experiment>/<head>/seed-<k>, which {folder / CONFIG} says is "
            f"{RunFolder.of(configuration, Path()).path}; got {folder}. Move it back to such a place, or put its own file back."
        )
    if wanted.epochs is not None:
        configuration = configuration.lengthened(wanted.epochs)
    return TrainRequest(configuration, replace(wanted.placement, out=out))
