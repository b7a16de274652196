"""The commands: their flags, as fields that tyro parses, and what they do. Slow imports wait until a command runs.

The docstring of a command is its help; `checked` returns the same command with checked values, and `run` its exit status.
"""
# ruff: noqa: D102

import json
import os
import shutil
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union

import tyro
from tyro import MISSING_NONPROP

from guided_collapse.experiments.cli import requests
from guided_collapse.experiments.configuration import Accelerator, Configuration, HeadName, Placement
from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS
from guided_collapse.experiments.run import MODEL, RunFolder

if TYPE_CHECKING:
    from guided_collapse.experiments.comparison import Comparison
    from guided_collapse.experiments.records import SearchRecord

DESCRIPTION = """Train, compare and measure classifier heads that are simplex ETFs.

Before a command, --version prints the version, and --traceback shows where in the code an error happens."""
FEWEST_COLUMNS = 40  # in fewer, tyro breaks lines forever

RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]


@dataclass(frozen=True)
class List:
    """List all experiments and heads."""

    def run(self) -> int:
        for name, preset in PRESETS.items():
            print(f"{name:22}{preset.data:19}{preset.backbone}, {preset.epochs} epochs, batch {preset.batch_size}")
        print(f"\nheads: {', '.join(HEADS)}")
        return 0


@dataclass(frozen=True)
class Train:
    """Train one run, or continue it if it was started. Name an experiment, or give --data with a folder of your own images."""

    configuration: Annotated[Configuration, tyro.conf.arg(constructor=requests.ConfigurationFlags)]
    placement: Annotated[Placement, tyro.conf.arg(constructor=requests.PlacementFlags)]
    preset: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PRESET]")] = None
    """Name of an experiment, whose settings the flags override."""

    def checked(self, start: Configuration, given: Collection[str]) -> Self:
        heads = self.heads if isinstance(self, _Several) else [self.configuration.head]
        configuration = requests.configuration_of(self.configuration, start, given, heads)
        return replace(self, configuration=configuration, placement=requests.placement_of(self.placement, configuration.data))

    def run(self) -> int:
        import torch.distributed as dist

        from guided_collapse.experiments.loop import train

        run = train(self.configuration, self.placement)
        if not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
            print(run.path)
        return 0


@dataclass(frozen=True)
class _Several(Train):
    """Runs of several heads and seeds."""

    configuration: Annotated[Configuration, tyro.conf.arg(constructor=requests.SharedFlags)]
    heads: tuple[HeadName, ...] = ("linear", "cosine", "fixed-etf", "nearest-etf")
    """Heads to train."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds to train each head with; in a search, those of the best setting."""
    jobs: int = 1
    """Number of runs at a time; with CUDA each gets its own devices."""

    def checked(self, start: Configuration, given: Collection[str]) -> Self:
        if not 1 <= self.jobs <= 1000:
            raise RequestError(f"jobs must be from 1 to 1000; got {self.jobs}.")
        return super().checked(start, given)

    def check_launch(self) -> None:
        """Refuses devices and data that are not there once, instead of in every run."""
        from guided_collapse.experiments.data.known import check_source
        from guided_collapse.experiments.launch import check_launch

        with requested():
            check_launch(self.placement, self.configuration.precision)
            if not self.configuration.is_unconstrained:
                check_source(self.configuration.data)


@dataclass(frozen=True)
class Compare(_Several):
    """Train every head with every seed, print a table, and write a report. Finished runs are not repeated."""

    settings_of: Path | None = None
    """Folder of a search: each head takes the settings chosen there. Other flags are for all heads."""

    def checked(self, start: Configuration, given: Collection[str]) -> Self:
        from guided_collapse.experiments.grid_search import settings_of_search

        searched = {field for own in settings_of_search(self.settings_of, self.heads).values() for field in own}
        if both := sorted(searched & set(given)):
            raise RequestError(f"{', '.join(both)} must come from the search or from a flag; got both. Leave out one of them.")
        return super().checked(start, given)

    def run(self) -> int:
        from guided_collapse.experiments.comparison import compare
        from guided_collapse.experiments.grid_search import settings_of_search

        self.check_launch()
        settings = settings_of_search(self.settings_of, self.heads)
        comparison = compare(self.configuration, self.heads, self.seeds, self.placement, settings=settings, jobs=self.jobs)
        return _conclude(comparison, self.placement.out / self.configuration.experiment)


@dataclass(frozen=True)
class Search(_Several):
    """Try every head with every setting of a grid on validation images, then train the best setting of each with fresh seeds.

    The plan is written to search.json first. Repeat the command to continue an interrupted search.
    """

    grid: tuple[str, ...] = ()
    """Values to try, as FIELD=VALUE,VALUE: learning_rate=0.05,0.1 scale=5,10. Every combination is a trial."""
    trial_seeds: tuple[int, ...] = (1000,)
    """Seeds of every trial."""
    trial_epochs: int | None = None
    """Number of epochs of a trial; by default as many as in the final runs."""
    validation_share: float = 0.2
    """Fraction of the training images of each class that trials are tested on."""

    def checked(self, start: Configuration, given: Collection[str]) -> Self:
        # A grid of learning rates needs an optimizer that has one.
        flags, needed = vars(self.configuration), {"learning_rate", "weight_decay", "momentum"} & set(grid_of(self.grid))
        if needed and flags["optimizer"] == "agd" and "optimizer" not in given:
            warnings.warn(f"agd has no {' and '.join(sorted(needed))}: this search uses --optimizer sgd.", stacklevel=2)
            flags = {**flags, "optimizer": "sgd"}
        request = super(Search, replace(self, configuration=requests.SharedFlags(**flags))).checked(start, given)
        request.plan()  # checks the rest
        return request

    def plan(self) -> "SearchRecord":
        """The plan of the search."""
        from guided_collapse.experiments.grid_search import planned_search

        trials: dict[str, Any] = {"trial_seeds": self.trial_seeds, "trial_epochs": self.trial_epochs}
        trials["validation_fraction"] = self.validation_share
        return planned_search(self.configuration, self.heads, grid_of(self.grid), seeds=self.seeds, **trials)

    def run(self) -> int:
        from guided_collapse.experiments.grid_search import search
        from guided_collapse.experiments.report.formats import plain_text
        from guided_collapse.experiments.report.tables import search_table

        self.check_launch()
        outcome = search(self.plan(), self.placement, jobs=self.jobs)
        print(plain_text(search_table([outcome.record])))
        return _conclude(outcome.fresh, outcome.folder)


def grid_of(words: Sequence[str]) -> dict[str, list[int | float]]:
    """The grid that words like "learning_rate=0.05,0.1" describe."""
    grid: dict[str, list[int | float]] = {}
    for word in words:
        name, _, values = word.partition("=")
        name = name.replace("-", "_")
        try:
            numbers = [int(value) if value.isdigit() else float(value) for value in values.split(",")]
        except ValueError:
            numbers = []
        if name in grid or not numbers:
            raise RequestError(f"--grid takes FIELD=NUMBER,NUMBER, each field once; got {' '.join(words)!r}.")
        grid[name] = numbers
    return grid


@dataclass(frozen=True)
class Resume:
    """Continue a run from its last checkpoint, or extend a finished one with --epochs."""

    run_dir: RunDir
    """Folder of the run."""
    placement: Annotated[Placement, tyro.conf.arg(constructor=requests.ResumeFlags)]
    epochs: int | None = None
    """Extend the run to this many epochs."""

    def run(self) -> int:
        from guided_collapse.experiments.run import configuration_of

        placement = Placement(**{**vars(self.placement), "lengthen": True, "out": self.run_dir.resolve().parents[2]})
        with requested():
            configuration = configuration_of(RunFolder(self.run_dir).facts())
        place = RunFolder.of(configuration, placement.out).path
        if place != self.run_dir.resolve():
            there = place.relative_to(placement.out)
            raise RequestError(f"a run must be in its folder {there}; got {self.run_dir}. Move it back there.")
        longer = configuration if self.epochs is None else configuration.lengthened(self.epochs)
        return Train(longer, placement).run()


@dataclass(frozen=True)
class Upgrade:
    """Train a new model against an older run, and test its queries in the gallery that the old model has embedded.

    Without --preset and other flags, everything but the head is as in the old run.
    """

    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OLD_RUN")]
    """Folder of the old run."""
    configuration: Annotated[Configuration, tyro.conf.arg(constructor=requests.ConfigurationFlags)]
    placement: Annotated[Placement, tyro.conf.arg(constructor=requests.PlacementFlags)]
    preset: str | None = None
    """Name of an experiment, whose settings the flags override."""
    galleries: tuple[Path, ...] = ()
    """Folders of more old runs whose galleries are tested, oldest first."""

    def checked(self, start: Configuration, given: Collection[str]) -> Self:
        with requested():
            facts, _ = RunFolder(self.run_dir).exportable()
        files, flags = facts.finished.files if facts.finished else {}, vars(self.configuration)
        flags = flags | {"upgrade_of": files[MODEL] if flags["head"] == "anchored" else None}
        configuration = requests.configuration_of(requests.ConfigurationFlags(**flags), start, given, [flags["head"]])
        return replace(self, configuration=configuration, placement=requests.placement_of(self.placement, configuration.data))

    def run(self) -> int:
        from guided_collapse.experiments.upgrade import upgrade

        old, *others = (RunFolder(path) for path in (self.run_dir, *self.galleries))
        done = upgrade(old, self.configuration, self.placement, galleries=others)
        if done.tests is not None:
            for number, run in enumerate((*others, old, done.run), 1):
                print(f"generation {number}: {run.path}")
            print(f"\n{done.tests}")
        return 0


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
        from guided_collapse.experiments.export import export_run

        export_run(RunFolder(self.run_dir), self.to)
        print(self.to)
        return 0


@dataclass(frozen=True)
class Features:
    """Write the features that a model computes of images into a file for compare --features, and for measure.

    The model is a finished run, or timm:NAME with its pretrained weights. The file holds features, labels, test_features and
    test_labels. Images are not augmented.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR|timm:NAME")]
    """Folder of a finished run, or a model of timm."""
    to: Path
    """Output file: .npz or .safetensors."""
    data: str | None = None
    """Folder of images with one subfolder per class, or name of a data set; by default that of the run."""
    weights: str | None = None
    """State dict to load into the timm model instead of its pretrained weights."""
    image_size: int | None = None
    """Resize images to this height and width; by default to that of the model."""
    data_root: Path | None = None
    """Folder of all data sets; by default $GUIDED_COLLAPSE_DATA, or a folder in the user's cache."""
    accelerator: Accelerator = "auto"
    """Kind of device to run on."""

    def run(self) -> int:
        from guided_collapse.experiments.features import features_of_network, features_of_run

        placement = Placement(data_root=self.data_root, accelerator=self.accelerator)
        if not self.model.startswith("timm:"):
            if given := [name for name in ("weights", "image_size") if getattr(self, name) is not None]:
                raise RequestError(f"{' and '.join(given)} must go with timm:NAME; got the run {self.model}. Leave them out.")
            features_of_run(RunFolder(Path(self.model)), self.data, self.to, placement)
        else:
            if self.data is None:
                raise RequestError(f"data must be given for {self.model}; got none. Add --data FOLDER.")
            source: dict[str, Any] = {"pretrained": self.weights is None, "weights": self.weights, "image_size": self.image_size}
            configuration = Configuration("features", self.data, self.model, optimizer="adamw", **source)
            features_of_network(configuration, self.to, placement)
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
    num_classes: int | None = None
    """Number of classes, if some have no samples and there is no weight to tell."""
    global_mean: Literal["samples", "classes"] = "samples"
    """Take the global mean over all samples, or over the class means."""
    center_weight: bool = False
    """Center the weights for NC2, NC3, equinorm and angles."""

    def run(self) -> int:
        from guided_collapse.metrics.measure import measure_collapse, read_arrays

        options: dict[str, Any] = {name: getattr(self, name) for name in ("num_classes", "global_mean", "center_weight")}
        with requested():
            result = measure_collapse(**read_arrays(self.file), **options)
        values = {name: value for name, value in result.to_dict().items() if name != "cosine_margins"}
        print(json.dumps(values, indent=2, allow_nan=False) if self.json else result)
        return 0


_ALL = (List, Train, Compare, Search, Upgrade, Resume, Report, Data, Export, Features, Measure)
COMMANDS: Mapping[str, Any] = {command.__name__.lower(): command for command in _ALL}


def parsed(words: Sequence[str]) -> Any:
    """The command that the words ask for, checked as far as that takes no torch; ready to `run`.

    Raises:
        SystemExit: after help, and for flags that cannot be parsed.
        RequestError: for an unknown preset, or values that are out of range or contradict each other.
    """
    flags = {Train: requests.ConfigurationFlags, Compare: requests.SharedFlags, Search: requests.SharedFlags}
    command, start = COMMANDS.get(words[0] if words else ""), OWN_IMAGES
    if command in flags:
        start = requests.starting_point(words[1:])
    elif command is Upgrade:
        start = requests.starting_point_of_upgrade(words[1:])
    placement = requests.PlacementFlags(**vars(Placement()))
    defaults: dict[Any, Any] = {kind: kind(of(**start.to_dict()), placement) for kind, of in flags.items()}
    anchored = requests.ConfigurationFlags(**start.to_dict() | {"head": "anchored"})
    defaults[Upgrade] = Upgrade(MISSING_NONPROP, anchored, placement)
    subcommands = {kind: tyro.conf.subcommand(name, default=defaults.get(kind, MISSING_NONPROP)) for name, kind in COMMANDS.items()}
    if shutil.get_terminal_size().columns < FEWEST_COLUMNS:
        os.environ["COLUMNS"] = str(FEWEST_COLUMNS)
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    any_of: Any = Union[*(Annotated[kind, subcommand] for kind, subcommand in subcommands.items())]
    request: Any = tyro.cli(any_of, prog="guided-collapse", description=DESCRIPTION, args=list(words), config=config)
    return request.checked(start, requests.given_fields(words)) if command in defaults else request


def _conclude(comparison: "Comparison", folder: Path) -> int:
    """Prints the table, writes the report into the folder, names the runs that failed, and returns the exit status."""
    from guided_collapse.experiments.report.write import write_report

    if comparison.finished:
        print(comparison)
        print(f"\n{write_report([folder], folder / 'report').page}")
    for failed, reason in comparison.failed:
        print(f"failed: {failed.path}: {reason}", file=sys.stderr)
    return 1 if comparison.failed else 0
