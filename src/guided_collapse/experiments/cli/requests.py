"""What the commands `train`, `compare`, `resume` and `cost` share: flags that are the fields of a request, and checks of it.

What stands here needs no torch, so that help and wrong flags are answered at once.
"""

import os
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tyro

from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.backbones import BACKBONES
from guided_collapse.experiments.data.known import KNOWN
from guided_collapse.experiments.presets import OWN_IMAGES, PRESETS, preset
from guided_collapse.experiments.heads import HEADS
from guided_collapse.experiments.configuration import check_choice
from guided_collapse.experiments.configuration import HEAD_FIELDS, Configuration, HeadName
from guided_collapse.experiments.configuration import Placement

FEWEST_COLUMNS = 40

Request = TypeVar("Request")


class Words(NamedTuple):
    """What follows the name of a command."""

    first: str | None
    """The word before all flags, if there is one: an experiment or a folder."""
    flags: Sequence[str]


def split_words(words: Sequence[str]) -> Words:
    """The first word and the flags."""
    if not words or words[0].startswith("-"):
        return Words(None, words)
    return Words(words[0], words[1:])


def parsed(default: Request, command: str, flags: Sequence[str]) -> Request:
    """The request with the fields that the flags give.

    Args:
        default: the request without flags.
        command: its name, with the word before the flags.
        flags: as given.

    Raises:
        SystemExit: after help, or words on flags that cannot be understood.
    """
    prog = f"guided-collapse {command}"
    with requested(), _room_for_words():
        return tyro.cli(type(default), prog=prog, default=default, args=list(flags), config=(tyro.conf.OmitArgPrefixes,))


def starting_point(name: str | None, flags: Sequence[str]) -> Configuration:
    """The preset, or for a user's own images the recipe for them.

    A preset's learning rate is one for its optimizer: another one that the flags name comes with its own.

    Raises:
        RequestError: for an unknown preset or head, or neither preset nor data.
    """
    check_heads(flags)
    if name is not None:
        start = preset(name)
        others = set(_values(flags, "--optimizer")) - {start.optimizer}
        return replace(start, learning_rate=None) if others else start
    if any(flag == "--data" or flag.startswith("--data=") for flag in flags) or asks_for_help(flags):
        return OWN_IMAGES
    raise RequestError(f"name an experiment ({', '.join(PRESETS)}), or give --data FOLDER with your own images; got neither.")


def check_heads(flags: Sequence[str]) -> None:
    """Refuses unknown heads before the flags are parsed.

    Raises:
        RequestError: with the nearest names.
    """
    for value in _values(flags, "--head", "--heads"):
        check_choice("the head", value, tuple(HEADS))


def _values(flags: Sequence[str], *names: str) -> list[str]:
    """What the flags of these names are given, before anything is parsed."""
    values: list[str] = []
    collecting = False
    for flag in flags:
        name, equals, value = flag.partition("=")
        if flag.startswith("-"):
            collecting = name in names
            values += [value] if collecting and equals else []
        elif collecting:
            values.append(flag)
    return values


def asks_for_help(flags: Sequence[str]) -> bool:
    """Whether help is all that is wanted."""
    return "--help" in flags or "-h" in flags


def checked(configuration: Configuration, placement: Placement, flags: Sequence[str], heads: Sequence[HeadName]) -> Configuration:
    """The configuration without what is left of its preset and has no effect, if everything fits together.

    Args:
        configuration: as asked for.
        placement: as asked for.
        flags: as given.
        heads: those that are to be trained.

    Raises:
        RequestError: for what does not fit together.
    """
    configuration = _with_effect(configuration, named_fields(flags), heads)
    _check_batch(configuration, heads)
    _check_crop(configuration)
    check_out(placement.out)
    return configuration


def check_out(out: Path) -> None:
    """Refuses what cannot be an output folder.

    Raises:
        RequestError: with what is in the way.
    """
    try:
        existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    except OSError as error:
        raise RequestError(f"out must be a folder, or a path where one can be made; got {out}: {error.strerror}.") from error
    if not existing.is_dir():
        raise RequestError(
            f"out must be a folder, or a path where one can be made; got {out}, and {existing} is a file. Choose another --out."
        )


def named_fields(flags: Sequence[str]) -> set[str]:
    """The fields that flags name."""
    names = {flag.partition("=")[0].lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def _check_batch(configuration: Configuration, heads: Sequence[HeadName]) -> None:
    centering = [head for head in heads if HEADS[head].centers(configuration.protocol)]
    if configuration.batch_size == 1 and centering:
        raise RequestError(
            f"batch_size must be at least 2 for {', '.join(centering)}: a batch of one sample, once centered, is zero and teaches "
            "nothing; got 1. Raise --batch-size."
        )


def _check_crop(configuration: Configuration) -> None:
    """Refuses crops that are larger than the images, where their size is known; for folders it is not yet."""
    size = configuration.image_size or (KNOWN[configuration.data].image_size if configuration.data in KNOWN else None)
    if size is not None and configuration.crop_size is not None and configuration.crop_size > size:
        raise RequestError(f"crop_size must be at most the size of the images, {size}; got {configuration.crop_size}. Crop less.")


class Idle(NamedTuple):
    """A field is without effect where the field `choice` has one of these values."""

    choice: str
    values: Collection[str]


def _networks_without(option: str) -> tuple[str, ...]:
    return tuple(name for name, network in BACKBONES.items() if option not in network.options)


_FREE = Idle("backbone", ("unconstrained",))

# Not here: what the configuration itself refuses (learning rates for agd, sizes of unconstrained features for images), and
# everything of the placement, which is about the machine and may be given always.
_IDLE: Mapping[str, Idle] = {
    "gain": Idle("optimizer", ("sgd", "adamw")),
    "momentum": Idle("optimizer", ("agd", "adamw")),
    **{field: Idle("head", tuple(name for name, head in HEADS.items() if field not in head.takes)) for field in HEAD_FIELDS},
    **{
        field: Idle("backbone", (*_networks_without(field), "unconstrained")) for field in ("width", "stem", "affine", "batch_norm")
    },
    "feature_dim": Idle("backbone", _networks_without("feature_dim")),
    "image_size": _FREE,
    "test_fraction": Idle("data", (*KNOWN, "unconstrained")),
    "validation_fraction": _FREE,
    "images_per_class": _FREE,
    "long_tail": _FREE,
    "long_tail_ratio": Idle("long_tail", ("none",)),
    "flip": _FREE,
    "crop_padding": _FREE,
    "rotation": _FREE,
    "crop_size": _FREE,
    "random_resized": _FREE,
}


def _with_effect(configuration: Configuration, given: Collection[str], heads: Sequence[str]) -> Configuration:
    """The configuration with defaults where a preset's own values no longer have an effect.

    Args:
        configuration: as asked for.
        given: names of the fields that were asked for; the others are the preset's.
        heads: those that are to be trained.

    Raises:
        RequestError: for fields that were asked for, and are without effect. What some heads have no use for is a warning alone:
            the same flags may go to runs of several heads.
    """
    defaults: dict[str, Any] = {field.name: field.default for field in fields(configuration)}
    left_over: dict[str, Any] = {}
    for name, idle in _IDLE.items():
        value = getattr(configuration, name)
        chosen = heads if idle.choice == "head" else [getattr(configuration, idle.choice)]
        if value == defaults[name] or not set(chosen) <= set(idle.values):
            continue
        if name not in given:
            left_over[name] = defaults[name]
            continue
        message = (
            f"{idle.choice} {' and '.join(chosen)} has no option {name}; got {name}={value!r}, which would be without effect. "
            f"Leave it out, or choose another {idle.choice}."
        )
        if idle.choice != "head":
            raise RequestError(message)
        warnings.warn(message, stacklevel=2)
    return replace(configuration, **left_over)


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
