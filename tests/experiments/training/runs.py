"""Small real runs, and what they leave behind."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.records.schema import CHECKSUM, LAST_CHECKPOINT, MARGINS
from guided_collapse.experiments.training.folder.checkpoint import load_checkpoint, save_checkpoint
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.configuration import Placement

DIGITS = replace(PRESETS["digits"], epochs=2, batch_size=256)
FREE = replace(PRESETS["ufm-10"], num_samples=60, feature_dim=16, batch_size=60, epochs=12, measure_every=5)


def placed(out: Path, **changes: Any) -> Placement:
    return Placement(out=out, accelerator="cpu", quiet=True, **changes)


def records(run: RunFolder) -> list[dict[str, Any]]:
    """All records, without the times, which no two runs share."""
    return [replace(record, seconds=None).to_json() for record in run.records()]


def weights(run: RunFolder) -> dict[str, npt.NDArray[Any]]:
    return load_file(run.model_file)


def assert_same(one: RunFolder, other: RunFolder) -> None:
    """Bit for bit the same result."""
    assert records(one) == records(other)
    theirs = weights(other)
    for name, tensor in weights(one).items():
        np.testing.assert_array_equal(tensor, theirs[name], err_msg=name)
    with np.load(one.path / MARGINS) as mine, np.load(other.path / MARGINS) as others:
        np.testing.assert_array_equal(mine["train"], others["train"])


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


def rewrite_checkpoint(run: RunFolder, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Makes the last checkpoint another one, with the right checksum."""
    checkpoint = load_checkpoint(run.path)
    assert checkpoint is not None
    state = change(checkpoint.state)
    (run.path / LAST_CHECKPOINT).unlink()
    save_checkpoint(run.path, state)


def as_an_earlier_version_wrote(run: RunFolder) -> RunFolder:
    """Without the facts and records of the checkpoint, the checksum of the configuration, and the seal of the model."""
    rewrite_checkpoint(run, lambda state: {name: value for name, value in state.items() if name not in ("facts", "records")})
    facts = json.loads(run.config_file.read_text())
    del facts[CHECKSUM]
    run.config_file.write_text(json.dumps(facts, indent=2) + "\n")
    if run.model_file.exists():
        save_file(load_file(run.model_file), run.model_file)
    return run
