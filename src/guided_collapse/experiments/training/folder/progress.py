"""How far a run has come, as the finished model and the newest checkpoint say."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from guided_collapse.experiments.errors import DamageError
from guided_collapse.experiments.records.epochs import records_from_json
from guided_collapse.experiments.records.schema import LAST_CHECKPOINT, EpochRecord
from guided_collapse.experiments.training.folder.checkpoint import Checkpoint, load_checkpoint, not_a_checkpoint
from guided_collapse.experiments.training.folder.facts import Facts, configuration_of
from guided_collapse.experiments.training.folder.run import RunFolder, differences, of_two_runs
from guided_collapse.experiments.configuration import Configuration

STATE: dict[str, type] = {"epoch": int, "model": dict, "optimizer": dict, "random": torch.Tensor}


@dataclass(frozen=True)
class Progress:
    """What a run goes on from."""

    file: Path
    """The checkpoint."""
    epoch: int
    """The last epoch that is done."""
    facts: Facts
    """Of the run, which may have been shorter when the checkpoint was written."""
    records: list[EpochRecord]
    """Of all epochs that are done."""
    state: dict[str, Any]
    """Of the model, the optimizer, the random numbers and the trace."""


def has_come_to_its_end(run: RunFolder, configuration: Configuration) -> bool:
    """Whether there is nothing left to do, which for a finished run with a damaged file there is.

    Raises:
        DamageError: if it cannot be said of which run the folder is.

    Warns:
        RuntimeWarning: for each file that is damaged.
    """
    end = run.end()
    for damage in end.damage:
        warnings.warn(f"{damage}; it is to be written again, from the last checkpoint.", RuntimeWarning, stacklevel=3)
    return not end.damage and end.facts is not None and configuration_of(end.facts) == configuration


def tell_of_a_lost_checkpoint(run: RunFolder, configuration: Configuration) -> None:
    """A finished run needs its last checkpoint only to be made longer, or mended: who asks for it now is told in time.

    Warns:
        RuntimeWarning: if it is damaged.
    """
    if not (run.path / LAST_CHECKPOINT).exists():
        return
    try:
        read_progress(run, configuration)
    except DamageError as error:
        warnings.warn(f"the run is finished and whole, but {error}", RuntimeWarning, stacklevel=3)


def read_progress(run: RunFolder, configuration: Configuration) -> Progress | None:
    """What the run of this configuration goes on from; None for one that has no whole checkpoint and begins.

    Raises:
        DamageError: if none is whole, though the run has finished, or if it is that of another run.
    """
    checkpoint = load_checkpoint(run.path)
    if checkpoint is None:
        if run.model_file.exists():
            raise DamageError(
                f"{run.path} can go on or be made longer only from its last checkpoint, and {LAST_CHECKPOINT} is not whole. "
                "It is left as it is; start a new one with another --out or --experiment, or move it away."
            )
        return None
    state = checkpoint.state
    file = checkpoint.file
    for name, kind in {**STATE, **({"trace": dict} if configuration.trace else {})}.items():
        if not isinstance(state.get(name), kind):
            raise not_a_checkpoint(file, f"{name} must be a {kind.__name__}; got {type(state.get(name)).__name__}")
    facts, records = _facts_and_records(checkpoint, run)
    if not configuration_of(facts).becomes(configuration):
        raise of_two_runs(run.config_file, file, differences(configuration_of(facts), configuration))
    if not 1 <= len(records) == state["epoch"] <= configuration.epochs:
        wanted = f"it must have an epoch from 1 to {configuration.epochs}, and as many records"
        raise not_a_checkpoint(file, f"{wanted}; got {state['epoch']} and {len(records)}")
    return Progress(file, state["epoch"], facts, records, state)


def _facts_and_records(checkpoint: Checkpoint, run: RunFolder) -> tuple[Facts, list[EpochRecord]]:
    """From the checkpoint; those of earlier versions do not have them, and rely on the files beside."""
    facts = checkpoint.facts
    if facts is None:
        return run.facts(), run.records(until=checkpoint.state["epoch"])
    try:
        return facts, records_from_json(checkpoint.state.get("records"))
    except ValueError as error:
        raise not_a_checkpoint(checkpoint.file, str(error)) from error
