"""Heads against each other over seeds."""

import os
import statistics
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

from guided_collapse.experiments.errors import WorkError
from guided_collapse.experiments.records.declared.quantities import MARGIN, NC1, TEST_TOP1, TRAIN_LOSS, TRAIN_TOP1
from guided_collapse.experiments.records.text import aligned
from guided_collapse.experiments.training.folder.facts import configuration_of
from guided_collapse.experiments.training.folder.progress import has_come_to_its_end
from guided_collapse.experiments.training.folder.run import RunFolder
from guided_collapse.experiments.training.loop import train
from guided_collapse.experiments.configuration import Configuration, HeadName
from guided_collapse.experiments.configuration import Placement


@dataclass(frozen=True)
class Comparison:
    """Runs that finished, and runs that failed with the reason.

    Example:
        >>> from guided_collapse.experiments import Comparison
        >>> len(Comparison(finished=(), failed=()).failed)
        0
    """

    finished: tuple[RunFolder, ...]
    failed: tuple[tuple[RunFolder, str], ...]


def compare(
    configuration: Configuration,
    heads: Sequence[HeadName],
    seeds: Sequence[int],
    placement: Placement,
    *,
    settings: Mapping[HeadName, Mapping[str, Any]] = MappingProxyType({}),
    jobs: int = 1,
) -> Comparison:
    """Runs every head with every seed; what is finished is skipped, what was begun is resumed, and a failure stops only its run.

    Args:
        configuration: what all runs share.
        heads: names of heads.
        seeds: seeds, each used for every head.
        placement: where to run. With several processes each run is a command of its own.
        settings: fields of the configuration that a head has values of its own for, as `settings_of_search` gives them.
        jobs: how many runs at a time.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from guided_collapse.experiments import Configuration, Placement, compare
        >>> sizes = {"num_classes": 4, "feature_dim": 8, "num_samples": 40, "batch_size": 40}
        >>> short = Configuration("short", data="unconstrained", backbone="unconstrained", epochs=2, **sizes)
        >>> with TemporaryDirectory() as folder:
        ...     comparison = compare(short, ["fixed-etf", "nearest-etf"], [0], Placement(out=Path(folder), quiet=True))
        >>> len(comparison.finished), comparison.failed
        (2, ())
    """
    # Seeds outside, so that an interrupted comparison still has something to compare.
    wanted = [
        replace(configuration, head=head, seed=seed, **settings.get(head, {}))
        for seed in dict.fromkeys(seeds)
        for head in dict.fromkeys(heads)
    ]
    return run_all(wanted, placement, jobs=jobs)


def run_all(configurations: Sequence[Configuration], placement: Placement, *, jobs: int = 1) -> Comparison:
    """Runs every configuration, some at a time; a failure stops only its run.

    Args:
        configurations: each with a folder of its own.
        placement: where to run.
        jobs: how many runs at a time. With several, each is a command of its own, and on CUDA has a device of its own.
    """
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(jobs):
        slots.put(slot)

    def attempt(configuration: Configuration) -> str | None:
        slot = slots.get()
        try:
            # What is finished needs no command, which would take seconds to say so.
            if jobs == placement.processes == 1 or has_come_to_its_end(RunFolder.of(configuration, placement.out), configuration):
                train(configuration, placement)
            else:
                _train_in_a_command(configuration, placement, slot=slot, jobs=jobs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            slots.put(slot)
        return None

    finished: list[RunFolder] = []
    failed: list[tuple[RunFolder, str]] = []
    wanted = [configuration.resolved() for configuration in configurations]
    with ThreadPoolExecutor(jobs) if jobs > 1 else nullcontext() as pool:
        for configuration, reason in zip(wanted, (pool.map if pool else map)(attempt, wanted), strict=True):
            run = RunFolder.of(configuration, placement.out)
            if reason is None:
                finished.append(run)
            else:
                warnings.warn(f"{run.path} failed: {reason}", RuntimeWarning, stacklevel=2)
                failed.append((run, reason))
    return Comparison(tuple(finished), tuple(failed))


def comparison_table(comparison: Comparison) -> str:
    """Median and range over seeds at the end of training, for each head.

    Warns:
        RuntimeWarning: for a run whose records cannot be read, which is left out.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from guided_collapse.experiments import Configuration, Placement, compare, comparison_table
        >>> sizes = {"num_classes": 4, "feature_dim": 8, "num_samples": 40, "batch_size": 40}
        >>> short = Configuration("short", data="unconstrained", backbone="unconstrained", epochs=2, **sizes)
        >>> with TemporaryDirectory() as folder:
        ...     comparison = compare(short, ["fixed-etf"], [0], Placement(out=Path(folder), quiet=True))
        ...     table = comparison_table(comparison)
        >>> [line.split()[0] for line in table.splitlines()]
        ['head', 'fixed-etf']
    """
    values: dict[str, dict[str, list[float]]] = {}
    for run in comparison.finished:
        try:
            configuration = configuration_of(run.facts())
            last = run.records(until=configuration.epochs)[-1]
        except (ValueError, OSError) as error:
            warnings.warn(f"left out of the table: {error}", RuntimeWarning, stacklevel=2)
            continue
        of_head = values.setdefault(configuration.head, {})
        for quantity, heading in COLUMNS:
            value = last.measured(quantity.split).get(quantity.name)
            if value is not None:
                of_head.setdefault(heading, []).append(quantity.factor * value)
    headings = [heading for _, heading in COLUMNS if any(heading in of_head for of_head in values.values())]
    rows = [["head", "seeds", *headings]]
    for head, of_head in values.items():
        count = str(max(map(len, of_head.values()), default=0))
        rows.append([head, count, *(_median_and_range(of_head.get(heading, [])) for heading in headings)])
    return "\n".join(aligned(rows))


COLUMNS = (
    (TRAIN_TOP1, "train acc %"),
    (TEST_TOP1, "test acc %"),
    (TRAIN_LOSS, "train loss"),
    (NC1, "NC1"),
    (MARGIN, "margin"),
)


def _median_and_range(entries: Sequence[float]) -> str:
    if not entries:
        return "-"
    median, lowest, highest = (f"{value:.4g}" for value in (statistics.median(entries), min(entries), max(entries)))
    return median if len(entries) == 1 else f"{median} ({lowest} to {highest})"


def _train_in_a_command(configuration: Configuration, placement: Placement, *, slot: int, jobs: int) -> None:
    """A process of its own, which Fabric may start copies of, with its share of the machine if others run beside it."""
    # Every field is given, also those that the head has no use for and that nobody asked for.
    quiet = ["-W", f"ignore:head {configuration.head} has no option"]
    command = [sys.executable, *quiet, "-m", "guided_collapse.experiments.cli", "train", *_flags(configuration), *_flags(placement)]
    environment = os.environ if jobs == 1 else os.environ | _share_of_the_machine(placement.devices, slot=slot, jobs=jobs)
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode != 0:
        raise WorkError(f"its command ended with status {done.returncode}")


def _share_of_the_machine(devices: int, *, slot: int, jobs: int) -> dict[str, str]:
    """Environment variables that keep runs beside each other on different devices, and leave each its part of the cores."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [str(device) for device in range(jobs * devices)] if visible is None else visible.split(",")
    threads = os.environ.get("OMP_NUM_THREADS") or str(max((os.cpu_count() or 1) // (jobs * devices), 1))
    return {"CUDA_VISIBLE_DEVICES": ",".join(known[slot * devices : (slot + 1) * devices]), "OMP_NUM_THREADS": threads}


def _flags(values: Configuration | Placement) -> list[str]:
    flags: list[str] = []
    for field in fields(values):
        name = field.name.replace("_", "-")
        value = getattr(values, field.name)
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        else:
            flags += [f"--{name}", str(value)]
    return flags
