"""What the commands `train`, `compare`, `resume` and `cost` are asked for, from flags that are the fields of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import tyro

from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS, preset
from guided_collapse.training.configuration import HEADS, Configuration, HeadName, Precision, check_choice
from guided_collapse.training.placement import Placement
from guided_collapse.training.run import RunFolder

Request = TypeVar("Request")


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


@dataclass(frozen=True)
class CostRequest:
    """What a training step of each head costs: real steps, on random inputs of the experiment's shape."""

    heads: tuple[HeadName, ...] = ("standard", "fixed", "implicit", "implicit-detached", "implicit-lagged")
    """Heads to measure."""
    paper_route: bool = True
    """Also the implicit head by the paper's own route, the trust region and the dense gradient, where it fits."""
    steps: int = 10
    """Measured steps, of which the median is taken."""
    warm_up: int = 3
    """Steps before them."""
    batch_size: int | None = None
    """Samples in a step; None is the experiment's."""
    precision: Precision = "32-true"
    """Of the forward and backward pass."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    limit_seconds: float = 240.0
    """Time for one head, with its start; what is not done by then is given up, and the record says so."""
    out: Path = Path("runs")
    """The folder that takes the place of `runs`."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warm_up < 0 or self.limit_seconds <= 0:
            raise ValueError(
                "steps must be at least 1, warm_up not negative and limit_seconds positive; "
                f"got {self.steps}, {self.warm_up} and {self.limit_seconds}."
            )
        if not self.heads and not self.paper_route:
            raise ValueError("cost needs at least one head; got none. Give --heads, or leave --no-paper-route out.")


def train_request(name: str | None, flags: Sequence[str]) -> TrainRequest:
    """What `train [PRESET] FLAGS` asks for.

    Raises:
        ValueError: for an unknown preset or head, or neither preset nor data.
    """
    return _parsed(TrainRequest, TrainRequest(_starting_point(name, flags), Placement()), "train", name, flags)


def compare_request(name: str | None, flags: Sequence[str]) -> CompareRequest:
    """What `compare [PRESET] FLAGS` asks for.

    Raises:
        ValueError: for an unknown preset or head, or a single head or seed.
    """
    for flag, instead in (("--head", "--heads"), ("--seed", "--seeds")):
        if any(given == flag or given.startswith(f"{flag}=") for given in flags):
            raise ValueError(f"compare takes {instead}, with one or more values; got {flag}.")
    return _parsed(CompareRequest, CompareRequest(_starting_point(name, flags), Placement()), "compare", name, flags)


def resume_request(folder: Path | None, flags: Sequence[str]) -> TrainRequest:
    """What `resume RUN_DIR FLAGS` asks for: the configuration that is there, or it with more epochs, wherever it is to run.

    Raises:
        ValueError: for a folder that is not that of a run, or has been moved out of its place, or a run that cannot be longer.
    """
    wanted = _parsed(ResumeRequest, ResumeRequest(_PlacementOfARun()), "resume", "RUN_DIR", flags)
    if folder is None:
        raise ValueError("resume needs the folder of a run; got none. Usage: guided-collapse resume RUN_DIR")
    facts = RunFolder(folder).facts()
    configuration = Configuration.from_dict(facts["configuration"])
    out = folder.resolve().parents[2]
    if RunFolder.of(configuration, out).path != folder.resolve():
        raise ValueError(
            f"a run is in a folder <experiment>/<head>/seed-<k>, here {RunFolder.of(configuration, Path()).path}; "
            f"got {folder}. Move it back to such a place."
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
    return configuration, _parsed(CostRequest, CostRequest(), "cost", name or "PRESET", flags)


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
        check_choice("the head", value, HEADS)


def _asks_for_help(flags: Sequence[str]) -> bool:
    return "--help" in flags or "-h" in flags


def _parsed(kind: type[Request], default: Request, command: str, name: str | None, flags: Sequence[str]) -> Request:
    prog = f"guided-collapse {command} {name or ''}".rstrip()
    return tyro.cli(kind, prog=prog, default=default, args=list(flags), config=(tyro.conf.OmitArgPrefixes,))
