"""The commands: what each takes, and what it does. What is slow to import is imported when a command runs.

Flags are the fields of these classes, of `Configuration` and of `Placement`; tyro makes help and errors of their types and docstrings.
"""

import json
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Union

import tyro

from guided_collapse.experiments.cli.requests import (
    HIDDEN,
    ConfigurationFlags,
    PlacementFlags,
    SharedFlags,
    configuration_of,
    given_fields,
    placement_of,
    starting_point,
)
from guided_collapse.experiments.configuration import Configuration, HeadName, Placement
from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS

if TYPE_CHECKING:
    from guided_collapse.experiments.comparison import Comparison
    from guided_collapse.experiments.records.schema import SearchRecord

DESCRIPTION = """Train, compare and measure classifier heads that are simplex ETFs.

`guided-collapse --version` prints the version; `guided-collapse --traceback COMMAND ...` also shows where in the code an error
happened."""
USUAL_HEADS: tuple[HeadName, ...] = ("linear", "cosine", "fixed-etf", "nearest-etf")

Preset = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PRESET]")]
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]


class Command(Protocol):
    """A command that was understood."""

    def run(self) -> int:
        """Does the work and returns the exit status."""


@dataclass(frozen=True)
class List:
    """List all experiments and heads."""

    def run(self) -> int:
        """Prints them."""
        for name, preset in PRESETS.items():
            print(f"{name:22}{preset.data:19}{preset.backbone}, {preset.epochs} epochs, batch {preset.batch_size}")
        print(f"\nheads: {', '.join(HEADS)}")
        return 0


@dataclass(frozen=True)
class Train:
    """Train one run, or continue it if it was started. Name an experiment, or give --data with a folder of your own images."""

    configuration: Annotated[Configuration, tyro.conf.arg(constructor=ConfigurationFlags)]
    placement: Annotated[Placement, tyro.conf.arg(constructor=PlacementFlags)]
    preset: Preset = None
    """Name of an experiment, whose settings the flags override."""

    def checked(self, start: Configuration, given: Collection[str]) -> "Train":
        """The same with checked values."""
        configuration = configuration_of(self.configuration, start, given, [self.configuration.head])
        return replace(self, configuration=configuration, placement=placement_of(self.placement))

    def run(self) -> int:
        """Trains, and prints the folder of the run."""
        import torch.distributed as dist

        from guided_collapse.experiments.training.loop import train

        run = train(self.configuration, self.placement)
        if not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
            print(run.path)
        return 0


@dataclass(frozen=True)
class Compare:
    """Train every head with every seed, print a table, and write a report. Finished runs are not repeated."""

    configuration: Annotated[Configuration, tyro.conf.arg(constructor=SharedFlags)]
    placement: Annotated[Placement, tyro.conf.arg(constructor=PlacementFlags)]
    preset: Preset = None
    """Name of an experiment, whose settings the flags override."""
    heads: tuple[HeadName, ...] = USUAL_HEADS
    """Heads to compare."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds to train each head with."""
    settings_of: Path | None = None
    """Folder of a search: each head takes the settings chosen there. Other flags are for all heads."""
    jobs: int = 1
    """Number of runs at a time; with CUDA each gets its own devices."""

    def checked(self, start: Configuration, given: Collection[str]) -> "Compare":
        """The same with checked values."""
        _check_several(self)
        configuration = configuration_of(self.configuration, start, given, self.heads)
        for seed in self.seeds:
            replace(configuration, seed=seed)  # checks it
        searched = {field for own in self._settings().values() for field in own}
        if both := sorted(searched & set(given)):
            raise RequestError(f"{', '.join(both)} must come from the search or from a flag; got both. Leave out one of them.")
        return replace(self, configuration=configuration, placement=placement_of(self.placement))

    def run(self) -> int:
        """Trains all runs, prints a table of medians and ranges, and writes a report."""
        from guided_collapse.experiments.comparison import compare

        _check_launch(self)
        settings = self._settings()
        comparison = compare(self.configuration, self.heads, self.seeds, self.placement, settings=settings, jobs=self.jobs)
        return _conclude(comparison, self.placement.out / self.configuration.experiment)

    def _settings(self) -> Mapping[HeadName, Mapping[str, Any]]:
        from guided_collapse.experiments.grid_search import settings_of_search

        return settings_of_search(self.settings_of, self.heads) if self.settings_of else {}


@dataclass(frozen=True)
class Search:
    """Try every head with every setting of a grid on validation images, then train the best setting of each with fresh seeds.

    The plan is written to search.json first. Repeat the command to continue an interrupted search.
    """

    configuration: Annotated[Configuration, tyro.conf.arg(constructor=SharedFlags)]
    placement: Annotated[Placement, tyro.conf.arg(constructor=PlacementFlags)]
    preset: Preset = None
    """Name of an experiment, whose settings the flags override."""
    grid: tuple[str, ...] = ()
    """Values to try, as FIELD=VALUE,VALUE: learning_rate=0.05,0.1 scale=5,10. Every combination is a trial."""
    heads: tuple[HeadName, ...] = USUAL_HEADS
    """Heads to search for."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Fresh seeds to train the best setting of each head with."""
    trial_seeds: tuple[int, ...] = (1000,)
    """Seeds of every trial."""
    trial_epochs: int | None = None
    """Number of epochs of a trial; by default as many as in the final runs."""
    validation_share: float = 0.2
    """Fraction of the training images of each class that trials are tested on."""
    jobs: int = 1
    """Number of runs at a time; with CUDA each gets its own devices."""

    def checked(self, start: Configuration, given: Collection[str]) -> "Search":
        """The same with checked values. A grid of learning rates needs an optimizer that has one: sgd, if the preset's has none."""
        _check_several(self)
        flags, needs_rate = vars(self.configuration), {"learning_rate", "weight_decay", "momentum"} & set(grid_of(self.grid))
        if needs_rate and flags["optimizer"] == "agd" and "optimizer" not in given:
            warnings.warn(f"agd has no {' and '.join(sorted(needs_rate))}: this search uses --optimizer sgd.", stacklevel=2)
            flags = {**flags, "optimizer": "sgd"}
        configuration = configuration_of(SharedFlags(**flags), start, given, self.heads)
        request = replace(self, configuration=configuration, placement=placement_of(self.placement))
        request.plan()  # checks the rest
        return request

    def plan(self) -> "SearchRecord":
        """The plan of the search; refused as by `planned_search`."""
        from guided_collapse.experiments.grid_search import planned_search

        return planned_search(
            self.configuration,
            self.heads,
            grid_of(self.grid),
            seeds=self.seeds,
            trial_seeds=self.trial_seeds,
            trial_epochs=self.trial_epochs,
            validation_fraction=self.validation_share,
        )

    def run(self) -> int:
        """Runs the search, prints the tables of trials and of fresh seeds, and writes a report."""
        from guided_collapse.experiments.report.tables import plain_text, search_table
        from guided_collapse.experiments.grid_search import search

        _check_launch(self)
        outcome = search(self.plan(), self.placement, jobs=self.jobs)
        tried = search_table([outcome.record])
        print(plain_text(tried) if tried else "")
        return _conclude(outcome.fresh, outcome.folder)


def grid_of(words: Sequence[str]) -> dict[str, list[int | float]]:
    """The grid that words like "learning_rate=0.05,0.1" describe.

    Raises:
        RequestError: for words of another form, a field that occurs twice, or no words.
    """
    grid: dict[str, list[int | float]] = {}
    for word in words:
        name, _, values = word.partition("=")
        name = name.replace("-", "_")
        try:
            numbers = [json.loads(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if name in grid or not numbers or not all(type(number) in (int, float) for number in numbers):
            raise RequestError(f"--grid takes FIELD=NUMBER,NUMBER, each field once; got {' '.join(words)!r}.")
        grid[name] = numbers
    if not grid:
        raise RequestError(
            "search needs a grid; got none. Give --grid FIELD=NUMBER,NUMBER, as in --grid learning_rate=0.05,0.1,0.2."
        )
    return grid


class ResumeFlags(PlacementFlags):
    """The flags of a placement for a run whose folder stays the same."""

    out: Annotated[Path, *HIDDEN] = Path("runs")
    lengthen: Annotated[bool, *HIDDEN] = True


@dataclass(frozen=True)
class Resume:
    """Continue a run from its last checkpoint, or extend a finished one with --epochs."""

    run_dir: RunDir
    """Folder of the run."""
    placement: Annotated[Placement, tyro.conf.arg(constructor=ResumeFlags)]
    epochs: int | None = None
    """Extend the run to this many epochs."""

    def run(self) -> int:
        """Continues the run in its folder."""
        from guided_collapse.experiments.run import RunFolder, configuration_of

        placement = Placement(**{**vars(self.placement), "lengthen": True, "out": self.run_dir.resolve().parents[2]})
        with requested():
            configuration = configuration_of(RunFolder(self.run_dir).facts())
        place = RunFolder.of(configuration, placement.out).path
        if place != self.run_dir.resolve():
            raise RequestError(
                f"the run in {self.run_dir} must be in a folder <experiment>/<head>/seed-<k>, here "
                f"{place.relative_to(placement.out)}. Move it back there."
            )
        if self.epochs is not None:
            configuration = configuration.lengthened(self.epochs)
        return Train(configuration, placement).run()


@dataclass(frozen=True)
class Report:
    """Write a page, tables and figures from the records of all runs in the folders."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUNS")]
    """Folders with runs, at any depth."""
    out: Path
    """Output folder."""
    epochs: tuple[int, ...] | None = None
    """Epochs that the tables show; by default 50 and 200, or the last if runs are shorter."""

    def run(self) -> int:
        """Writes the report; it fails in part if some records cannot be used."""
        if not self.runs:
            raise RequestError("report needs one or more folders with runs; got none. Usage: guided-collapse report RUNS --out DIR")
        from guided_collapse.experiments.report.write import write_report

        with requested():
            summary = write_report(self.runs, self.out, epochs=self.epochs)
        print(summary.page)
        return 1 if summary.skipped else 0


@dataclass(frozen=True)
class Data:
    """Download a data set or say how to get it, check its files, and print where it is."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the data set."""
    data_root: Path | None = None
    """Folder of all data sets; by default $GUIDED_COLLAPSE_DATA, or a folder in the user's cache."""
    archive: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """An archive of it that you already have."""

    def run(self) -> int:
        """Downloads the data set."""
        from guided_collapse.experiments.data.download import download

        with requested():
            print(download(self.name, root=self.data_root, archive=self.archive))
        return 0


@dataclass(frozen=True)
class Export:
    """Write the model of a finished run for use without this package: images with values in 0 to 1 in, logits out."""

    run_dir: RunDir
    """Folder of the run."""
    to: Path
    """Output file: .onnx, .pt2 or .safetensors."""

    def run(self) -> int:
        """Writes the model."""
        from guided_collapse.experiments.run import RunFolder
        from guided_collapse.experiments.training.export import export_run

        export_run(RunFolder(self.run_dir), self.to)
        print(self.to)
        return 0


@dataclass(frozen=True)
class Measure:
    """Print the neural collapse metrics of the features in a file.

    It must hold the arrays features (N, d) and labels (N,), and may hold weight (C, d), bias (C,), test_features and test_labels.
    """

    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """File that ends in .npz or .safetensors."""
    json: bool = False
    """Print JSON instead of a table."""
    margins: bool = False
    """With --json: also print all cosine margins, sorted."""
    num_classes: int | None = None
    """Number of classes, if some have no samples and there is no weight to tell."""
    global_mean: Literal["samples", "classes"] = "samples"
    """Take the global mean over all samples, or over the class means."""
    center_weight: bool = False
    """Center the weights for NC2, NC3, equinorm and angles."""

    def run(self) -> int:
        """Measures and prints."""
        if self.margins and not self.json:
            raise RequestError("--margins needs --json; got it alone. Add --json.")
        from guided_collapse.metrics.collapse import measure_collapse
        from guided_collapse.metrics.files import read_arrays

        with requested():
            arrays = read_arrays(self.file)
            result = measure_collapse(
                *arrays[:4],
                num_classes=self.num_classes,
                test_features=arrays.test_features,
                test_labels=arrays.test_labels,
                global_mean=self.global_mean,
                center_weight=self.center_weight,
            )
        values = result.to_dict()
        if not self.margins:
            del values["cosine_margins"]
        print(json.dumps(values, indent=2, allow_nan=False) if self.json else result)
        return 0


COMMANDS: Mapping[str, type[Command]] = {
    "list": List,
    "train": Train,
    "compare": Compare,
    "search": Search,
    "resume": Resume,
    "report": Report,
    "data": Data,
    "export": Export,
    "measure": Measure,
}
FROM_A_PRESET: Mapping[str, Any] = {"train": ConfigurationFlags, "compare": SharedFlags, "search": SharedFlags}


def parsed(words: Sequence[str]) -> Command:
    """The command that the words ask for, checked as far as that takes no torch.

    Raises:
        SystemExit: after help, and for flags that cannot be parsed.
        RequestError: for an unknown preset, or values that are out of range or contradict each other.
    """
    name, rest = (words[0], words[1:]) if words else ("", ())
    start = starting_point(rest) if name in FROM_A_PRESET else OWN_IMAGES
    kinds = []
    for command, kind in COMMANDS.items():
        default: Any = tyro.MISSING_NONPROP
        if command in FROM_A_PRESET:
            default = COMMANDS[command](FROM_A_PRESET[command](**start.to_dict()), PlacementFlags(**vars(Placement())))
        kinds.append(Annotated[kind, tyro.conf.subcommand(command, default=default)])
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    request: Any = tyro.cli(Union[tuple(kinds)], prog="guided-collapse", description=DESCRIPTION, args=list(words), config=config)  # noqa: UP007
    return request.checked(start, given_fields(rest)) if name in FROM_A_PRESET else request


def _check_several(request: Compare | Search) -> None:
    for name in ("heads", "seeds"):
        if not getattr(request, name):
            raise RequestError(f"{name} must be one or more; got none. Name them after --{name}, or leave it out.")
    if request.jobs < 1:
        raise RequestError(f"jobs must be at least 1; got {request.jobs}.")


def _check_launch(request: Compare | Search) -> None:
    """Refuses devices and data that are not there once, instead of in every run."""
    from guided_collapse.experiments.data.known import check_source
    from guided_collapse.experiments.training.launch import check_launch

    with requested():
        check_launch(request.placement, request.configuration.precision)
        if not request.configuration.is_unconstrained:
            check_source(request.configuration.data)


def _conclude(comparison: "Comparison", folder: Path) -> int:
    """Prints the table, writes the report into the folder, names the runs that failed, and returns the exit status."""
    from guided_collapse.experiments.comparison import comparison_table
    from guided_collapse.experiments.report.write import write_report

    if comparison.finished:
        print(comparison_table(comparison))
        print(f"\n{write_report([folder], folder / 'report').page}")
    for failed, reason in comparison.failed:
        print(f"failed: {failed.path}: {reason}", file=sys.stderr)
    return 1 if comparison.failed else 0
