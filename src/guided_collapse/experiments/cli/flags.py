"""Turns the fields of a command into grouped flags for tyro, and command-line arguments into checked values."""

import os
import shutil
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro
from pydantic import TypeAdapter, ValidationError

from guided_collapse.experiments.configuration import Configuration, Placement, validation_message
from guided_collapse.experiments.errors import RequestError, check_choice
from guided_collapse.experiments.presets import OWN_DATA

# The fields of Configuration and Placement by group: first those that --help shows, then those that only --help-all shows.
GROUPS: Mapping[str, tuple[str, str]] = {
    "data": (
        "data test_fraction image_size flip data_root",
        "test_features validation_fraction images_per_class long_tail long_tail_ratio crop_padding rotation crop_size "
        "random_resized num_samples num_classes num_workers",
    ),
    "network": (
        "backbone pretrained neck feature_dim",
        "weights freeze freeze_batch_norm backbone_rate width stem affine batch_norm",
    ),
    "head": ("head scale", "proximal_weight solver every frame protocol"),
    "training": (
        "epochs batch_size optimizer learning_rate seed",
        "gain momentum weight_decay schedule precision measure_every measure_first",
    ),
    "output": ("out experiment trace quiet", "lengthen tensorboard checkpoint_seconds"),
    "device": ("accelerator devices", "nodes"),
}
ALIASES = {"data": ("--features",)}
METAVARS = {int: "N", float: "X", Path: "PATH", str: "NAME", bool: None}
NO_DEFAULT = (None, MISSING, "", Path(), (), False, "none")  # defaults that help leaves out
COLUMN = 24  # width that tyro gives to flags
LONGEST_CHOICE = 40  # in characters; longer lists are left to error messages and `guided-collapse list`
FEWEST_COLUMNS = 40  # with fewer columns, tyro's line breaking never ends


class Shown(NamedTuple):
    """How a command shows one of its own fields, if not as a basic flag of the same name."""

    metavar: str | None = None
    positional: bool = False
    flag: str | None = None
    advanced: bool = False


@dataclass(frozen=True)
class Flag:
    """A field that the command line shows as a flag or as a positional argument."""

    name: str
    hint: Any  # the annotation
    default: Any
    doc: str
    shown: Shown
    group: str = ""

    @property
    def kind(self) -> tuple[Any, bool]:
        """The type of one value, without None and pydantic's annotations, and whether the flag takes several values."""
        kind, several = self.hint, False
        while (origin := typing.get_origin(kind)) not in (None, Literal):
            several |= origin is tuple
            kind = typing.get_args(kind)[0]
        return kind, several

    def for_tyro(self, *, for_help: bool) -> tuple[str, Any, Any]:
        """Returns a dataclass field for tyro: name, type and default. tyro parses only switches; `value` does the rest."""
        kind, several = self.kind
        aliases, choices = ALIASES.get(self.name, ()), "|".join(typing.get_args(kind))
        fits = len(f"--{self.name} {choices}") <= COLUMN
        metavar = self.shown.metavar or METAVARS.get(kind, choices if fits else "NAME")
        default = "" if self.default in NO_DEFAULT else " ".join(map(str, self.default)) if several else str(self.default)
        notes = [
            *(f"or {alias}" for alias in aliases),
            *([choices] if choices and not fits and len(choices) <= LONGEST_CHOICE else ()),
            *([f"default: {'on' if kind is bool else default}"] if default else ()),
        ]
        settings = tyro.conf.arg(
            name=self.shown.flag,
            metavar=f"{metavar} ..." if several else metavar,
            aliases=None if for_help else aliases,
            help=self.doc.rstrip(".") + (f" ({'; '.join(notes)})" if notes else ""),
            help_behavior_hint="",
        )
        words: Any = bool if kind is bool else tuple[str, ...] if several else str
        start = self.default if kind is bool or self.default is MISSING else () if several else ""
        markers = [tyro.conf.Positional] if self.shown.positional else []
        if for_help and self.default is False:  # otherwise help shows --flag, --no-flag
            markers.append(tyro.conf.FlagCreatePairsOff)
        return self.name, Annotated[words, settings, *markers], field(default=start)

    def is_given(self, names: Collection[str], words: Any) -> bool:
        """Returns whether the command line sets the field, with a flag in `names` or, if positional, with nonempty `words`."""
        if self.shown.positional:
            return words not in ("", ())
        name = self.shown.flag or self.name
        return not {name, f"no_{name}", *(alias.strip("-") for alias in ALIASES.get(name, ()))}.isdisjoint(names)

    def value(self, words: Any) -> Any:
        """Returns the value that these words stand for; raises RequestError if it is invalid."""
        kind, several = self.kind
        if kind is bool:
            return words
        if words == "None" and type(None) in typing.get_args(self.hint):
            return None
        if typing.get_origin(kind) is Literal:
            for word in words if several else (words,):
                check_choice(self.name, word, typing.get_args(kind))
        try:
            return TypeAdapter(self.hint).validate_python(words)
        except ValidationError as error:
            raise RequestError(validation_message(error, self.name)) from None


def flags_of(command: Any, start: Configuration) -> Iterator[Flag]:
    """Yields the flags of a command: its own fields, then those of its configuration (defaults from `start`) and placement."""
    hints = typing.get_type_hints(command, include_extras=True)
    sources = {"configuration": start, "placement": Placement()}
    for own in fields(command):
        if own.name not in sources:
            hint = hints[own.name]
            shown = next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Shown)), Shown())
            yield Flag(own.name, hint, own.default, _doc(command, own.name), shown)
    nested = {name: typing.get_type_hints(type(source), include_extras=True) for name, source in sources.items() if name in hints}
    for group, (basic, advanced) in GROUPS.items():
        for name in f"{basic} {advanced}".split():
            for source, of_source in nested.items():
                if name in of_source and name not in command.hidden:
                    shown = Shown(advanced=name in advanced.split())
                    default = command.defaults.get(name, getattr(sources[source], name))
                    depends = name == "experiment" or (command.takes_a_run and source == "configuration")
                    if start in OWN_DATA and depends and name not in command.defaults and not isinstance(default, bool):
                        default = ""  # the data or the run decides
                    yield Flag(name, of_source[name], default, _doc(type(sources[source]), name), shown, group)


def _doc(kind: Any, name: str) -> str:
    declared = [base.__pydantic_fields__[name] for base in kind.__mro__ if name in getattr(base, "__pydantic_fields__", ())]
    return next(found.description for found in declared if found.description)  # a subclass describes only its own fields


def read(name: str, command: Any, words: Sequence[str], start: Configuration) -> dict[str, Any]:
    """Returns the checked values of the fields that the arguments set.

    Raises:
        SystemExit: after help, and for arguments that are not flags of the command.
        RequestError: for values of the wrong type.
    """
    basic, everything = not {"-h", "--help"}.isdisjoint(words), "--help-all" in words
    flags = list(flags_of(command, start))
    groups: dict[str, list[Any]] = {"": []}
    for flag in flags:
        if not (basic and flag.shown.advanced):
            groups.setdefault(flag.group, []).append(flag.for_tyro(for_help=basic or everything))
    own = groups.pop("")
    parts = {group: make_dataclass(group, found, kw_only=True) for group, found in groups.items()}
    nested = [(group, part, field(default_factory=part)) for group, part in parts.items()]
    description = cleandoc(command.__doc__)
    if any(flag.shown.advanced for flag in flags):
        description = description.replace("\n\nExample", "\n\nEvery flag: --help-all\n\nExample")
    if shutil.get_terminal_size().columns < FEWEST_COLUMNS:
        os.environ["COLUMNS"] = str(FEWEST_COLUMNS)
    found: Any = tyro.cli(
        make_dataclass(name, [*own, *nested], kw_only=True),
        prog=f"guided-collapse {name}",
        description=description,
        args=["--help"] if basic or everything else list(words),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    names = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in words if word.startswith("--")}
    taken = [(flag, getattr(getattr(found, flag.group) if flag.group else found, flag.name)) for flag in flags]
    return {flag.name: flag.value(value) for flag, value in taken if flag.is_given(names, value)}
