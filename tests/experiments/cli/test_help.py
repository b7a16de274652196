"""Help texts are short, grouped, readable and correct."""

import io
import re
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, fields

import pytest

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.cli.commands import COMMANDS
from guided_collapse.experiments.cli.flags import GROUPS, flags_of, read
from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.presets import OWN_IMAGES

VALUES = {"N": "1", "X": "0.5", "FIELD=N,N": "scale=5"}


@pytest.fixture
def help_of(monkeypatch):
    """Returns the help of a command, as in a terminal of 100 columns."""

    def text(*words, columns=100):
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # tyro draws boxes in UTF-8 only
        with pytest.raises(SystemExit) as end, redirect_stdout(terminal):
            main([*words])
        assert end.value.code == 0
        terminal.seek(0)
        return terminal.read()

    return text


def flags_in(text):
    """Every flag that a help text shows, with the placeholder of its value."""
    return dict(re.findall(r"(?:^│ |, )(--[a-z-]+)(?: ([^ ,\n]+)(?= |$))?", text, re.MULTILINE))


def test_every_field_has_one_place():
    names = [name for group in GROUPS.values() for names in group for name in names.split()]
    assert sorted([*names, "upgrade_of"]) == sorted(field.name for kind in (Configuration, Placement) for field in fields(kind))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_short_and_in_words(command, help_of):
    text = help_of(command, "--help")
    assert len(text.splitlines()) <= 60
    everything = help_of(command, "--help-all")
    assert set(flags_in(text)) <= set(flags_in(everything))
    for shown in (text, everything):
        assert not re.search("None|STR|INT|FLOAT|MISSING", shown)
        assert max(map(len, shown.splitlines())) <= 100
        assert f"    guided-collapse {command}" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_help_all_is_accepted(command, help_of):
    shown = flags_in(help_of(command, "--help-all"))
    flags = list(flags_of(COMMANDS[command], OWN_IMAGES))
    words = ["x" for flag in flags if flag.shown.positional]
    words += [word for flag in flags if flag.default is MISSING and not flag.shown.positional for word in (f"--{flag.name}", "x")]
    for flag, metavar in shown.items():
        if flag not in ("--help", "--help-all"):
            value = [VALUES.get(metavar, metavar.split("|")[0])] if metavar else []
            with suppress(RequestError):  # a choice that the help has no room for
                assert read(command, COMMANDS[command], [*words, flag, *value], OWN_IMAGES)
    assert {flag.removeprefix("--no-").removeprefix("--") for flag in shown} >= {
        (flag.shown.flag or flag.name).replace("_", "-") for flag in flags if not flag.shown.positional
    }


def test_help_shows_the_values_of_an_experiment(help_of):
    for words, epochs in ((["digits"], 20), ([], 30)):
        assert f"(default: {epochs})" in help_of("train", *words, "--help")


def test_help_ends_in_a_terminal_of_few_columns(help_of):
    assert "--epochs" in help_of("train", "--help", columns=5)
