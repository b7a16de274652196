"""What the commands `train`, `compare`, `resume` and `cost` are asked for, from flags that are the fields of a request."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from guided_collapse.cli.effects import with_effect
from guided_collapse.data.known import KNOWN
from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS, preset
from guided_collapse.profiling.request import CostRequest
from guided_collapse.records.heads import HEADS
from guided_collapse.records.schema import CONFIG
from guided_collapse.training.folder.facts import configuration_of
from guided_collapse.training.folder.run import RunFolder
from guided_collapse.training.settings.configuration import Configuration, HeadName, check_choice
from guided_collapse.training.settings.placement import Placement
from guided_collapse.training.settings.ranges import POSITIVE_COUNT, check_ranges

FEWEST_COLUMNS = 40

Request = TypeVar("Request")
RunRequest = TypeVar("RunRequest", "TrainRequest", "CompareRequest")


@dataclass(frozen=True)
class TrainRequest:
    """One run."""

    configuration: Configuration
    placement: Placement


@dataclass(frozen=True)
class CompareRequest:
    """Every head with every seed."""

    configuration: Configuration
    placement: Placement
    heads: tuple[HeadName, ...] = ("standard", "fixed", "implicit")
    """Heads to compare."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, each used for every head."""

    def __post_init__(self) -> None:
        for name in ("heads", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} must be one or more; got none. Name them after --{name}, or leave it out.")
        for seed in self.seeds:
            replace(self.configuration, seed=seed)  # which checks it


@dataclass(frozen=True)
class _PlacementOfARun(Placement):
    """Where a run that has its folder goes on."""

    out: Annotated[Path, tyro.conf.Fixed, tyro.conf.Suppress] = Path("runs")
    lengthen: Annotated[bool, tyro.conf.Fixed, tyro.conf.Suppress] = True


@dataclass(frozen=True)
class ResumeRequest:
    """A run goes on from its last checkpoint."""

    placement: _PlacementOfARun
    epochs: int | None = None
    """Make the run so long, though it may have ended earlier; None leaves it as long as it is."""

    def __post_init__(self) -> None:
        check_ranges(self, {"epochs": POSITIVE_COUNT})


def first_word(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The word before all flags, if there is one, and the rest."""
    return (None, words) if not words or words[0].startswith("-") else (words[0], words[1:])


def train_request(name: str | None, flags: Sequence[str]) -> TrainRequest:
    """What `train [PRESET] FLAGS` asks for.

    Raises:
        ValueError: for an unknown preset or head, or neither preset nor data.
    """
    wanted = _parsed(TrainRequest, TrainRequest(_starting_point(name, flags), Placement()), "train", name, flags)
    return _checked(wanted, flags, [wanted.configuration.head])


def compare_request(name: str | None, flags: Sequence[str]) -> CompareRequest:
    """What `compare [PRESET] FLAGS` asks for.

    Raises:
        ValueError: for an unknown preset or head, or a single head or seed.
    """
    for flag, instead in (("--head", "--heads"), ("--seed", "--seeds")):
        if any(given == flag or given.startswith(f"{flag}=") for given in flags):
            raise ValueError(f"compare takes {instead}, with one or more values; got {flag}.")
    wanted = _parsed(CompareRequest, CompareRequest(_starting_point(name, flags), Placement()), "compare", name, flags)
    return _checked(wanted, flags, wanted.heads)


def resume_request(folder: Path | None, flags: Sequence[str]) -> TrainRequest:
    """What `resume RUN_DIR FLAGS` asks for: the configuration that is there, or it with more epochs, wherever it is to run.

    Raises:
        ValueError: for a folder that is not that of a run, or has been moved out of its place, or a run that cannot be longer.
    """
    wanted = _parsed(ResumeRequest, ResumeRequest(_PlacementOfARun()), "resume", "RUN_DIR", flags)
    if folder is None:
        raise ValueError("resume needs the folder of a run; got none. Usage: guided-collapse resume RUN_DIR")
    configuration = configuration_of(RunFolder(folder).facts())
    out = folder.resolve().parents[2]
    if RunFolder.of(configuration, out).path != folder.resolve():
        raise ValueError(
            f"a run is in a folder <experiment>/<head>/seed-<k>, which {folder / CONFIG} says is "
            f"{RunFolder.of(configuration, Path()).path}; got {folder}. Move it back to such a place, or put its own file back."
        )
    if wanted.epochs is not None:
        configuration = configuration.lengthened(wanted.epochs)
    return TrainRequest(configuration, replace(wanted.placement, out=out))


def cost_request(name: str | None, flags: Sequence[str]) -> tuple[Configuration, CostRequest]:
    """What `cost PRESET FLAGS` asks for: the experiment and how to measure it.

    Raises:
        ValueError: for no or an unknown preset, or an unknown head.
    """
    _check_heads(flags)
    if name is None and not _asks_for_help(flags):
        raise ValueError(f"cost needs an experiment; got none. Name one of {', '.join(PRESETS)}.")
    configuration = OWN_IMAGES if name is None else preset(name)
    wanted = _parsed(CostRequest, CostRequest(), "cost", name or "PRESET", flags)
    if wanted.batch_size is not None and configuration.num_samples is not None and wanted.batch_size > configuration.num_samples:
        raise ValueError(f"batch_size must be at most num_samples = {configuration.num_samples}; got {wanted.batch_size}.")
    _check_out(wanted.out)
    return configuration, wanted


def _checked(wanted: RunRequest, flags: Sequence[str], heads: Sequence[HeadName]) -> RunRequest:
    """The request, if what it asks for fits together, without what is left of its preset and has no effect."""
    configuration = with_effect(wanted.configuration, _names(flags), heads)
    _check_batch(configuration, heads)
    _check_crop(configuration)
    _check_out(wanted.placement.out)
    return replace(wanted, configuration=configuration)


def _names(flags: Sequence[str]) -> set[str]:
    """The fields that flags name."""
    names = {flag.partition("=")[0].lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def _check_batch(configuration: Configuration, heads: Sequence[HeadName]) -> None:
    centring = [head for head in heads if configuration.protocol == "fair" or HEADS[head].centred]
    if configuration.batch_size == 1 and centring:
        raise ValueError(
            f"batch_size must be at least 2 for {', '.join(centring)}: a batch of one sample, once centred, is zero and teaches "
            "nothing; got 1. Raise --batch-size."
        )


def _check_crop(configuration: Configuration) -> None:
    """Refuses crops that are larger than the images, where their size is known; for folders it is not yet."""
    size = configuration.image_size or (KNOWN[configuration.data].image_size if configuration.data in KNOWN else None)
    if size is not None and configuration.crop_size is not None and configuration.crop_size > size:
        raise ValueError(f"crop_size must be at most the size of the images, {size}; got {configuration.crop_size}. Crop less.")


def _check_out(out: Path) -> None:
    """Refuses a place where no folder can be."""
    try:
        there = next(place for place in (out, *out.absolute().parents) if place.exists())
    except OSError as error:
        raise ValueError(f"out must be a folder, or a place for one; got {out}: {error.strerror}.") from error
    if not there.is_dir():
        raise ValueError(f"out must be a folder, or a place for one; got {out}, and {there} is a file. Choose another --out.")


def _starting_point(name: str | None, flags: Sequence[str]) -> Configuration:
    """The preset, or for a user's own images the recipe for them."""
    _check_heads(flags)
    if name is not None:
        return preset(name)
    if any(flag == "--data" or flag.startswith("--data=") for flag in flags) or _asks_for_help(flags):
        return OWN_IMAGES
    raise ValueError(f"name an experiment ({', '.join(PRESETS)}), or give --data FOLDER with your own images.")


def _check_heads(flags: Sequence[str]) -> None:
    """Refuses unknown heads before the flags are parsed, with the nearest names."""
    values: list[str] = []
    collecting = False
    for flag in flags:
        name, equals, value = flag.partition("=")
        if flag.startswith("-"):
            collecting = name in ("--head", "--heads")
            values += [value] if collecting and equals else []
        elif collecting:
            values.append(flag)
    for value in values:
        check_choice("the head", value, tuple(HEADS))


def _asks_for_help(flags: Sequence[str]) -> bool:
    return "--help" in flags or "-h" in flags


def _parsed(kind: type[Request], default: Request, command: str, name: str | None, flags: Sequence[str]) -> Request:
    prog = f"guided-collapse {command} {name or ''}".rstrip()
    with _room_for_words():
        return tyro.cli(kind, prog=prog, default=default, args=list(flags), config=(tyro.conf.OmitArgPrefixes,))


@contextmanager
def _room_for_words() -> Iterator[None]:
    """Help and errors are laid out for a terminal of some width: in a few columns tyro would break lines for ever."""
    given = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(max(shutil.get_terminal_size().columns, FEWEST_COLUMNS))
    try:
        yield
    finally:
        if given is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = given
