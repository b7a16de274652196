"""Small real runs, and what they leave behind."""

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from guided_collapse.experiments import loop
from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.run import MARGINS, MODEL, TRACE, RunFolder, read_epoch_records

DIGITS = replace(PRESETS["digits"], epochs=2, batch_size=256)
FREE = replace(PRESETS["ufm-10"], num_samples=60, feature_dim=16, batch_size=60, epochs=12, measure_every=5)
TINY = replace(FREE, num_classes=3, num_samples=12, feature_dim=4, batch_size=12, epochs=4, measure_every=1, trace=True)

UNANCHORED = [name for name in HEADS if name != "anchored"]  # heads that need no older run


class InterruptionError(Exception):
    """Represents whatever ends a run too early."""


def placed(out: Path, **changes: Any) -> Placement:
    return Placement(out=out, accelerator="cpu", quiet=True, **changes)


def interrupted_before(epoch: int, configuration: Configuration, placement: Placement, **given: Any) -> RunFolder:
    """A run that ends before that epoch."""
    train_epoch = loop.Training.train_epoch

    def interrupted(training: loop.Training, number: int, *others: Any) -> Any:
        if number == epoch:
            raise InterruptionError
        return train_epoch(training, number, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "train_epoch", interrupted)
        with pytest.raises(InterruptionError):
            loop.train(configuration, placement, **given)
    return RunFolder.of(configuration, placement.out)


def records(run: RunFolder) -> list[dict[str, Any]]:
    """All records, without the times, which no two runs share."""
    return [replace(record, seconds=None).to_json() for record in read_epoch_records(run.path)]


def weights(run: RunFolder) -> dict[str, npt.NDArray[Any]]:
    return load_file(run.path / MODEL)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the lock."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


def assert_same(one: RunFolder, other: RunFolder) -> None:
    """Asserts that two results are identical bit for bit."""
    assert records(one) == records(other)
    assert one.facts().configuration == other.facts().configuration
    assert_equal_arrays(weights(one), weights(other))
    for name in (MARGINS, TRACE):
        assert (one.path / name).exists() == (other.path / name).exists()
        if (one.path / name).exists():
            with np.load(one.path / name) as mine, np.load(other.path / name) as others:
                assert_equal_arrays(dict(mine), dict(others))


def assert_equal_arrays(mine: dict[str, npt.NDArray[Any]], others: dict[str, npt.NDArray[Any]]) -> None:
    assert mine.keys() == others.keys()
    for name, array in mine.items():
        assert array.dtype == others[name].dtype
        assert array.tobytes() == others[name].tobytes(), name


def flags_of(configuration: Configuration) -> list[str]:
    """The flags that make the preset `digits` this configuration."""
    start = PRESETS["digits"].to_dict()
    changed = {name: value for name, value in configuration.to_dict().items() if start[name] != value}
    flags = []
    for name, value in changed.items():
        flag = name.replace("_", "-")
        flags += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return flags


def full_disk(*_: object, **__: object) -> NoReturn:
    """Stands in for what writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
