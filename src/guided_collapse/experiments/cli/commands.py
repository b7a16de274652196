"""The commands. The fields of each command are its flags, and its docstring is its help. Slow imports are deferred.

`start` returns the configuration that the flags change, `of` builds the command from the values of the given flags, and `run`
executes it and returns the exit status.
"""
# ruff: noqa: D102

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from guided_collapse.experiments.cli import requests
from guided_collapse.experiments.cli.flags import Shown, read
from guided_collapse.experiments.configuration import Accelerator, Configuration, Count, HeadName, Placement, settings
from guided_collapse.experiments.errors import RequestError, check_choice, requested
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS
from guided_collapse.experiments.run import MODEL, RunFolder, configuration_of

if TYPE_CHECKING:
    from guided_collapse.experiments.comparison import Comparison
    from guided_collapse.experiments.records import SearchRecord

HELP = """usage: guided-collapse COMMAND ...

Train, compare and measure classifier heads that are simplex ETFs.

{commands}

Start with: guided-collapse compare digits
Flags of a command: guided-collapse COMMAND --help

Before a command, --version prints the version, and --traceback prints the traceback of
an error."""

RunDir = Annotated[Path, Shown("RUN_DIR", positional=True)]


class Command:
    """The base class of commands. Its methods are for commands without a configuration; other commands override them."""

    hidden: ClassVar[tuple[str, ...]] = ()  # fields of its configuration or placement that are not flags
    defaults: ClassVar[Mapping[str, Any]] = {}  # for fields whose default is not that of `start`
    takes_a_run: ClassVar[bool] = False  # whether `start` is the configuration of a run that the words name

    @classmethod
    def start(cls, words: Sequence[str]) -> Configuration:
        return OWN_IMAGES

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        return cls(**given)

    def run(self) -> int:
        raise NotImplementedError


@settings
class List(Command):
    """List experiments and heads.

    Example:
        guided-collapse list
    """

    def run(self) -> int:
        from guided_collapse.experiments.records import aligned

        rows = [["NAME", "DATA", "NETWORK", "OPTIMIZER", "EPOCHS"]]
        rows += [[name, preset.data, preset.backbone, preset.optimizer, str(preset.epochs)] for name, preset in PRESETS.items()]
        print("Experiments, for train, compare and search:", *aligned(rows), sep="\n  ")
        heads = [["NAME", "CLASSIFIER"], *([name, head.about] for name, head in HEADS.items())]
        print("\nHeads, for --head and --heads:", *aligned(heads), sep="\n  ")
        return 0


@settings
class Train(Command):
    """Train one run, or resume it if it has already started.

    Name an experiment, or give --data with a folder of your own images.

    Examples:
        guided-collapse train digits --head nearest-etf --epochs 5
        guided-collapse train --data my_images --head nearest-etf-lagged
    """

    configuration: Configuration
    placement: Placement
    preset: Annotated[str | None, Shown("[EXPERIMENT]", positional=True)] = None
    """Experiment whose settings the flags change."""

    @classmethod
    def start(cls, words: Sequence[str]) -> Configuration:
        return requests.starting_point(words)

    @classmethod
    def heads_of(cls, given: Mapping[str, Any], start: Configuration) -> tuple[HeadName, ...]:
        return (given.get("head", start.head),)

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        configuration = requests.configuration_of(start, given, cls.heads_of(given, start))
        own = {field.name: given[field.name] for field in fields(cls) if field.name in given}
        return cls(configuration=configuration, placement=requests.placement_of(given, configuration.data), **own)

    def run(self) -> int:
        import torch.distributed as dist

        from guided_collapse.experiments.loop import train

        run = train(self.configuration, self.placement)
        if not (dist.is_available() and dist.is_initialized() and dist.get_rank() > 0):
            print(run.path)
        return 0


@settings
class _SeveralRuns(Train):
    """The base class of commands that train several heads with several seeds."""

    heads: tuple[HeadName, ...] = ("linear", "cosine", "fixed-etf", "nearest-etf")
    """Heads; `guided-collapse list` describes them."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds to train each head with."""
    jobs: Annotated[int, Field(ge=1, le=1000)] = 1
    """Concurrent runs; on CUDA, each gets its own devices."""

    hidden: ClassVar[tuple[str, ...]] = ("head", "seed")

    @classmethod
    def heads_of(cls, given: Mapping[str, Any], start: Configuration) -> tuple[HeadName, ...]:
        heads: tuple[HeadName, ...] = given.get("heads", cls.heads)
        return heads

    def begin(self) -> None:
        """Prints what will run, and checks devices and data once instead of in every run."""
        configuration = self.configuration
        what = (
            f"{len(self.heads)} heads x {len(self.seeds)} seeds of {configuration.experiment}, {configuration.epochs} epochs each"
        )
        print(f"{what}. Loading PyTorch ...", file=sys.stderr)
        from guided_collapse.experiments.data.known import check_source
        from guided_collapse.experiments.launch import check_launch

        with requested():
            check_launch(self.placement, configuration.precision)
            if not configuration.is_unconstrained:
                check_source(configuration.data)


@settings
class Compare(_SeveralRuns):
    """Train every head with every seed, and write a table and a report.

    Repeat the command to continue: finished runs are not trained again.

    Examples:
        guided-collapse compare digits --heads linear nearest-etf --seeds 0 1 2
        guided-collapse compare --data my_images --heads linear cosine nearest-etf-lagged
    """

    settings_of: Annotated[Path | None, Shown(advanced=True)] = None
    """Folder of a search that chose the settings of each head."""

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        from guided_collapse.experiments.grid_search import settings_of_search

        chosen = settings_of_search(given.get("settings_of"), cls.heads_of(given, start))
        searched = {field for own in chosen.values() for field in own}
        if both := sorted(searched & set(given)):
            raise RequestError(f"{', '.join(both)} must come from the search or from a flag; got both. Leave one out.")
        return super().of(given, start)

    def run(self) -> int:
        self.begin()
        from guided_collapse.experiments.comparison import compare
        from guided_collapse.experiments.grid_search import settings_of_search

        chosen = settings_of_search(self.settings_of, self.heads)
        comparison = compare(self.configuration, self.heads, self.seeds, self.placement, settings=chosen, jobs=self.jobs)
        runs = [*comparison.finished, *(run for run, _ in comparison.failed)]
        return _conclude(comparison, [run.path for run in runs if run.exists()], self.placement.out / self.configuration.experiment)


@settings
class Search(_SeveralRuns):
    """Search each head's settings on validation images, then train the best with fresh seeds.

    Each head is trained with every combination of the grid. Repeat the command to continue.

    Example:
        guided-collapse search digits --heads linear nearest-etf --grid learning_rate=0.03,0.1 scale=5,7
    """

    grid: Annotated[tuple[str, ...], Shown("FIELD=N,N")] = ()
    """Values to try, as in learning_rate=0.03,0.1 scale=5,7."""
    trial_seeds: tuple[int, ...] = (1000,)
    """Seeds of every trial."""
    trial_epochs: Annotated[Count | None, Shown(advanced=True)] = None
    """Epochs of a trial; by default, as many as in the final runs."""
    validation_share: Annotated[float, Shown(advanced=True)] = 0.2
    """Fraction of each class's training images held out to validate trials."""

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        # A grid of these fields needs an optimizer that has them.
        needed = {"learning_rate", "weight_decay", "momentum"} & set(grid_of(given.get("grid", ())))
        if needed and start.optimizer == "agd" and "optimizer" not in given:
            warnings.warn(f"agd has no {' and '.join(sorted(needed))}: this search uses --optimizer sgd.", stacklevel=2)
            given = {**given, "optimizer": "sgd"}
        request = super().of(given, start)
        request.plan()  # invalid grids and seeds raise RequestError here
        return request

    def plan(self) -> "SearchRecord":
        """Returns the plan of the search."""
        from guided_collapse.experiments.grid_search import planned_search

        trials: dict[str, Any] = {"trial_seeds": self.trial_seeds, "trial_epochs": self.trial_epochs}
        trials["validation_fraction"] = self.validation_share
        return planned_search(self.configuration, self.heads, grid_of(self.grid), seeds=self.seeds, **trials)

    def run(self) -> int:
        self.begin()
        from guided_collapse.experiments.grid_search import search
        from guided_collapse.experiments.report.formats import plain_text
        from guided_collapse.experiments.report.tables import search_table

        outcome = search(self.plan(), self.placement, jobs=self.jobs)
        print(plain_text(search_table([outcome.record])))
        return _conclude(outcome.fresh, [outcome.folder], outcome.folder)


def grid_of(words: Sequence[str]) -> dict[str, list[int | float]]:
    """Parses words such as "learning_rate=0.05,0.1" and returns the grid: the values to try for each field."""
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


@settings
class Resume(Command):
    """Continue a run from its last checkpoint, or extend a finished one.

    Example:
        guided-collapse resume runs/digits/nearest-etf/seed-0 --epochs 30
    """

    run_dir: RunDir
    """Folder of the run."""
    placement: Placement
    epochs: Count | None = None
    """Extend the run to this many epochs."""

    hidden: ClassVar[tuple[str, ...]] = ("out", "lengthen")

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        out = given["run_dir"].resolve().parents[2]
        placement = requests.placement_of({**given, "lengthen": True, "out": out}, "")
        return cls(run_dir=given["run_dir"], placement=placement, epochs=given.get("epochs"))

    def run(self) -> int:
        with requested():
            configuration = configuration_of(RunFolder(self.run_dir).facts())
        place = RunFolder.of(configuration, self.placement.out).path
        if place != self.run_dir.resolve():
            there = place.relative_to(self.placement.out)
            raise RequestError(f"a run must stay in its folder {there}; got {self.run_dir}. Move it back there.")
        longer = configuration if self.epochs is None else configuration.lengthened(self.epochs)
        return Train(longer, self.placement).run()


@settings
class Upgrade(Train):
    """Train a new model to query the gallery of an old run's model.

    By default, everything but the head is as in the old run.

    To see the settings of the old run: guided-collapse upgrade OLD_RUN --help

    Example:
        guided-collapse upgrade runs/digits/nearest-etf/seed-0 --experiment digits-2 --width 2
    """

    run_dir: Annotated[Path, Shown("OLD_RUN", positional=True)] = Path()
    """Folder of the old run."""
    preset: str | None = None
    """Experiment whose settings the flags change."""
    galleries: tuple[Path, ...] = ()
    """Folders of older runs whose galleries are searched too, oldest first."""

    defaults: ClassVar[Mapping[str, Any]] = {"head": "anchored"}
    takes_a_run: ClassVar[bool] = True

    @classmethod
    def start(cls, words: Sequence[str]) -> Configuration:
        return requests.starting_point_of_upgrade(words)

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        if "run_dir" not in given:
            raise RequestError("OLD_RUN is required; got nothing. Name its folder first: guided-collapse upgrade OLD_RUN")
        with requested():
            facts, _ = RunFolder(given["run_dir"]).exportable()
        files = facts.finished.files if facts.finished else {}
        given = {**cls.defaults, **given}
        return super().of({**given, "upgrade_of": files[MODEL] if given["head"] == "anchored" else None}, start)

    def run(self) -> int:
        from guided_collapse.experiments.upgrade import upgrade

        old, *others = (RunFolder(path) for path in (self.run_dir, *self.galleries))
        done = upgrade(old, self.configuration, self.placement, galleries=others)
        if done.tests is not None:
            for number, run in enumerate((*others, old, done.run), 1):
                print(f"generation {number}: {run.path}")
            print(f"\n{done.tests}")
        return 0


@settings
class Report(Command):
    """Write a report, with tables and figures, from the records of runs.

    Example:
        guided-collapse report runs --out report
    """

    runs: Annotated[tuple[Path, ...], Shown("RUNS", positional=True)]
    """Folders or zip archives with runs, at any depth."""
    out: Path
    """Output folder."""
    epochs: tuple[int, ...] | None = None
    """Epochs shown in the tables; by default 50 and 200, or else the last."""

    @classmethod
    def of(cls, given: Mapping[str, Any], start: Configuration) -> Self:
        if "runs" not in given:
            raise RequestError("report needs folders with runs; got none. Run: guided-collapse report RUNS --out DIR")
        return super().of(given, start)

    def run(self) -> int:
        from guided_collapse.experiments.report.write import write_report

        with requested():
            summary = write_report(self.runs, self.out, epochs=self.epochs)
        print(summary.page)
        return 1 if summary.skipped else 0


@settings
class Data(Command):
    """Download a data set, or say how to get it, and print where it is.

    Example:
        guided-collapse data cifar10
    """

    name: Annotated[str, Shown("NAME", positional=True)]
    """Name of the data set."""
    data_root: Path | None = None
    """Folder of all data sets; $GUIDED_COLLAPSE_DATA or the user's cache."""
    archive: Annotated[Path | None, Shown(flag="from")] = None
    """Archive that you already have, to use instead of a download."""

    def run(self) -> int:
        from guided_collapse.experiments.data.download import download

        with requested():
            print(download(self.name, root=self.data_root, archive=self.archive))
        return 0


@settings
class Export(Command):
    """Write the model of a finished run to a file that does not need this package.

    The model takes images with values from 0 to 1, or features, and returns logits.

    Example:
        guided-collapse export runs/digits/nearest-etf/seed-0 --to model.onnx
    """

    run_dir: RunDir
    """Folder of the run."""
    to: Path
    """Output file: .onnx, .pt2 or .safetensors."""

    def run(self) -> int:
        from guided_collapse.experiments.export import export_run

        export_run(RunFolder(self.run_dir), self.to)
        print(self.to)
        return 0


@settings
class Features(Command):
    """Write the features that a model computes to a file, for compare and measure.

    The model is a finished run, or timm:NAME with its pretrained weights.

    The file holds features, labels, test_features and test_labels. Images are not augmented.

    Example:
        guided-collapse features timm:resnet18 --data my_images --to features.npz
    """

    model: Annotated[str, Shown("RUN_DIR|timm:NAME", positional=True)]
    """Folder of a finished run, or a timm model."""
    to: Path
    """Output file: .npz or .safetensors."""
    data: str | None = None
    """Data set, or folder with one subfolder of images per class; by default, the data of the run."""
    weights: str | None = None
    """File with a state dict for the timm model."""
    image_size: int | None = None
    """Resize images to this height and width."""
    data_root: Path | None = None
    """Folder of all data sets; $GUIDED_COLLAPSE_DATA or the user's cache."""
    accelerator: Accelerator = "auto"
    """Kind of device."""

    def run(self) -> int:
        from guided_collapse.experiments.features import features_of_network, features_of_run

        placement = Placement(data_root=self.data_root, accelerator=self.accelerator)
        if not self.model.startswith("timm:"):
            if given := [name for name in ("weights", "image_size") if getattr(self, name) is not None]:
                raise RequestError(f"{' and '.join(given)} require timm:NAME; got the run {self.model}. Leave them out.")
            features_of_run(RunFolder(Path(self.model)), self.data, self.to, placement)
        else:
            if self.data is None:
                raise RequestError(f"data must be given for {self.model}; got none. Add --data FOLDER.")
            source: dict[str, Any] = {"pretrained": self.weights is None, "weights": self.weights, "image_size": self.image_size}
            configuration = Configuration("features", self.data, self.model, optimizer="adamw", **source)
            features_of_network(configuration, self.to, placement)
        print(self.to)
        return 0


@settings
class Measure(Command):
    """Print the neural collapse metrics of the features in a file.

    The file must hold the arrays features (N, d) and labels (N,).

    It may also hold weight (C, d), bias (C,), test_features and test_labels.

    Example:
        guided-collapse measure features.npz
    """

    file: Annotated[Path, Shown("FILE_OF_FEATURES", positional=True)]
    """File that ends in .npz or .safetensors."""
    json: bool = False
    """Print JSON instead of a table."""
    num_classes: int | None = None
    """Number of classes; needed if some have no samples and the file has no weight."""
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
COMMANDS: Mapping[str, type[Command]] = {command.__name__.lower(): command for command in _ALL}


def help_text() -> str:
    """Returns the help of `guided-collapse` itself."""
    first_lines = {name: (command.__doc__ or "").partition("\n")[0] for name, command in COMMANDS.items()}
    return HELP.format(commands="\n".join(f"  {name:10}{line}" for name, line in first_lines.items()))


def parsed(words: Sequence[str]) -> Any:
    """Returns the command that the arguments describe, ready to `run`, and checked as far as possible without torch.

    Raises:
        SystemExit: after help, and for arguments that are not flags of the command.
        RequestError: for an unknown preset, or values that are out of range or contradict each other.
    """
    name, *rest = words
    check_choice("the command", name, tuple(COMMANDS))
    command = COMMANDS[name]
    start = command.start(rest)
    return command.of(read(name, command, rest, start), start)


def _conclude(comparison: "Comparison", runs: Sequence[Path], folder: Path) -> int:
    """Prints the table, writes a report on the runs into the folder, lists failed runs, and returns the exit status."""
    from guided_collapse.experiments.report.write import write_report

    if comparison.finished:
        print(comparison)
        print("Writing the report ...", file=sys.stderr)
        page = write_report(runs, folder / "report").page
        print(f"\nOpen this page: {page.resolve().as_uri()}")
    for failed, reason in comparison.failed:
        print(f"failed: {failed.path}: {reason}", file=sys.stderr)
    return 1 if comparison.failed else 0
