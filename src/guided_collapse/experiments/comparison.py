"""Compares heads over seeds. Imports torch only when a run starts, which keeps the command line fast."""

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

from guided_collapse.experiments.configuration import Configuration, HeadName, Placement
from guided_collapse.experiments.errors import DamageError, InputError, RequestError, WorkError
from guided_collapse.experiments.records import aligned, read_run
from guided_collapse.experiments.run import RunFolder


@dataclass(frozen=True)
class Comparison:
    """Finished runs, and failed runs with the reasons. `print` shows a table of the heads and the verdict."""

    finished: tuple[RunFolder, ...]
    failed: tuple[tuple[RunFolder, str], ...]
    searched: bool = False
    """True if a search chose the settings of each head."""

    def __str__(self) -> str:
        """Returns a table of medians and the verdict, in at most 100 columns. Warns about damaged records."""
        from guided_collapse.experiments.report.formats import wrapped
        from guided_collapse.experiments.report.summaries import Experiment
        from guided_collapse.experiments.report.tables import outcome_table
        from guided_collapse.experiments.report.verdict import verdict

        runs = []
        for folder in (*self.finished, *(folder for folder, _ in self.failed)):
            try:
                runs.append(read_run(folder.path))
            except DamageError as error:
                if folder in self.finished:
                    warnings.warn(f"left out of the table: {folder.path}: {error}", RuntimeWarning, stacklevel=2)
        table = outcome_table(Experiment("", tuple(runs)))
        groups = ["", *itertools.chain(*([heading, *[""] * (width - 1)] for heading, width in table.groups))]
        rows = aligned([groups, table.columns, *table.cells.to_numpy().tolist()])
        return "\n".join([*rows, *map(wrapped, table.notes), "", str(verdict(runs, searched=self.searched))])


def compare(
    configuration: Configuration,
    heads: Sequence[HeadName],
    seeds: Sequence[int],
    placement: Placement,
    *,
    settings: Mapping[HeadName, Mapping[str, Any]] = MappingProxyType({}),
    jobs: int = 1,
) -> Comparison:
    """Trains every head with every seed. Skips finished runs, resumes others, and continues if a run fails.

    Args:
        configuration: settings shared by all runs.
        heads: names of heads.
        seeds: seeds, each used for every head.
        placement: where to run. If a run needs several processes, each run starts in a subprocess.
        settings: settings that differ between heads, as `settings_of_search` returns them.
        jobs: number of concurrent runs.

    Returns:
        The runs; `print` shows a table of the heads and the verdict.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from guided_collapse.experiments import Configuration, Placement, compare
        >>> sizes = {"num_classes": 4, "feature_dim": 8, "num_samples": 40, "batch_size": 40}
        >>> short = Configuration("short", data="unconstrained", backbone="unconstrained", epochs=2, **sizes)
        >>> with TemporaryDirectory() as folder:
        ...     comparison = compare(short, ["fixed-etf", "nearest-etf"], [0], Placement(out=Path(folder), quiet=True))
        ...     "Too few seeds to tell Nearest ETF from Fixed ETF" in str(comparison)
        True
    """
    if not heads or not seeds:
        raise RequestError(f"heads and seeds must not be empty; got heads {heads}, seeds {seeds}. Name at least one of each.")
    # With seeds in the outer loop, an interrupted comparison still covers every head.
    wanted = [
        replace(configuration, head=head, seed=seed, **settings.get(head, {}))
        for seed in dict.fromkeys(seeds)
        for head in dict.fromkeys(heads)
    ]
    return run_all(wanted, placement, jobs=jobs)


def run_all(configurations: Sequence[Configuration], placement: Placement, *, jobs: int = 1) -> Comparison:
    """Trains every configuration in its own folder, and continues if a run fails, unless the others would fail too (InputError).

    With several jobs, or several processes per run, each run starts in a subprocess. On CUDA, each job has its own devices.
    """
    from guided_collapse.experiments.display import Series

    series, in_subprocesses = Series(len(configurations)), not jobs == placement.processes == 1
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(jobs):
        slots.put(slot)

    def attempt(configuration: Configuration) -> str | None:
        from guided_collapse.experiments.loop import train

        slot = slots.get()
        try:
            if not in_subprocesses or RunFolder.of(configuration, placement.out).is_finished(configuration):
                train(configuration, placement, series=series)
            else:
                # Progress bars of concurrent runs would overwrite each other.
                _train_in_subprocess(configuration, replace(placement, quiet=placement.quiet or jobs > 1), slot=slot, jobs=jobs)
                series.trained += 1
        except InputError:
            raise
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            slots.put(slot)
        return None

    finished: list[RunFolder] = []
    failed: list[tuple[RunFolder, str]] = []
    wanted = [configuration.resolved() for configuration in configurations]
    with ThreadPoolExecutor(jobs) as pool:
        # A single job runs in this thread, where Ctrl-C reaches it.
        for configuration, reason in zip(wanted, (pool.map if jobs > 1 else map)(attempt, wanted), strict=True):
            run = RunFolder.of(configuration, placement.out)
            series.done += 1
            if in_subprocesses:
                print(f"run {series.done} of {series.total} ended: {configuration.title}  {series.left()}", file=sys.stderr)
            if reason is None:
                finished.append(run)
            else:
                warnings.warn(f"{run.path} failed: {reason}", RuntimeWarning, stacklevel=2)
                failed.append((run, reason))
    return Comparison(tuple(finished), tuple(failed))


def _train_in_subprocess(configuration: Configuration, placement: Placement, *, slot: int, jobs: int) -> None:
    """Trains in a subprocess, which Fabric may replicate. With several jobs, each gets a share of CUDA devices and CPU threads."""
    # The flags set every field, so ignore the warnings about fields that have no effect on this head.
    quiet = ["-W", f"ignore:head {configuration.head} has no option"]
    command = [sys.executable, *quiet, "-m", "guided_collapse.experiments.cli", "train", *_flags(configuration), *_flags(placement)]
    environment = dict(os.environ)
    if jobs > 1:
        devices = placement.devices
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        known = [str(device) for device in range(jobs * devices)] if visible is None else visible.split(",")
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(known[slot * devices : (slot + 1) * devices])
        environment.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // (jobs * devices), 1)))
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode != 0:
        raise WorkError(f"its process exited with status {done.returncode}")


def _flags(values: Configuration | Placement) -> list[str]:
    # `upgrade_of` is not a flag; only `upgrade` sets it.
    named = {field.name.replace("_", "-"): getattr(values, field.name) for field in fields(values) if field.name != "upgrade_of"}
    switches = {name: "" if value else "no-" for name, value in named.items() if isinstance(value, bool)}
    return [f"--{switches[name]}{name}" if name in switches else f"--{name}={value}" for name, value in named.items()]
