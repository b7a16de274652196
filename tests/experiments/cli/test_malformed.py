"""Invalid command lines: every flag with values of the wrong kind, and flags that contradict each other.

The legal values are listed here again, by field, and share nothing with the checks: a new field without an entry fails.
"""

import types
import typing
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

from guided_collapse.experiments.cli import main
from guided_collapse.experiments.cli.commands import COMMANDS

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

HUGE = "9" * 20
NUMBERS = ["x", "", "nan", "inf", "-inf", "-1", "0", HUGE, "1e308", "1.5"]
WORDS = ["", "nan", "0", "no-such-thing"]

# Of the values above, these can mean something for these fields. Anything else must be refused.
LEGAL = {
    ("experiment",): {"nan", "0", "no-such-thing"},
    ("out", "data_root"): {"", "nan", "0", "no-such-thing"},
    ("weight_decay", "checkpoint_seconds", "rotation", "proximal_weight"): {"0", "1.5"},
    ("gain", "learning_rate", "scale", "width", "long_tail_ratio", "backbone_rate"): {"1.5"},
    ("momentum", "frame", "seed", "seeds", "trial_seeds", "crop_padding", "num_workers", "measure_first"): {"0"},
    ("data", "backbone", "head", "heads", "protocol", "optimizer", "schedule", "stem", "solver", "long_tail"): set(),
    ("upgrade_of", "precision", "accelerator", "test_fraction", "validation_fraction", "validation_share", "grid", "preset"): set(),
    ("epochs", "batch_size", "every", "measure_every", "feature_dim", "num_samples", "num_classes"): set(),
    ("weights", "test_features", "neck", "settings_of"): set(),
    ("image_size", "crop_size", "images_per_class", "devices", "nodes", "jobs", "trial_epochs"): set(),
}
LEGAL_OF = {name: values for names, values in LEGAL.items() for name in names}

# With these the field has an effect, so that only its own value is wrong.
SETTING = {
    "every": ["--head", "nearest-etf-lagged"],
    "momentum": ["--optimizer", "sgd"],
    "learning_rate": ["--optimizer", "sgd"],
    "weight_decay": ["--optimizer", "sgd"],
    "schedule": ["--optimizer", "sgd"],
    "long_tail_ratio": ["--long-tail", "step"],
    "width": ["--backbone", "vgg13", "--image-size", "32"],
    "stem": ["--backbone", "resnet18", "--image-size", "32"],
}
PRESET = dict.fromkeys(("num_samples", "num_classes"), "ufm-10")


def flat_fields(request):
    """Name and type of every flag: the fields, and those of fields that are requests themselves."""
    hints = typing.get_type_hints(request)
    for field in fields(request):
        if is_dataclass(hints[field.name]):
            yield from flat_fields(hints[field.name])
        else:
            yield field.name, hints[field.name]


def values_for(kind):
    """Values to try for a field of this type; none for a switch."""
    if typing.get_origin(kind) is tuple:
        return ["", *values_for(typing.get_args(kind)[0])]
    parts = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if bool in parts:
        return []
    return NUMBERS if {int, float} & set(parts) else WORDS


def generated():
    """Every wrong value for every flag; two for a flag that an earlier command has too, which is checked in the same place."""
    seen = set()
    for command in ("train", "compare", "search", "resume"):
        for name, kind in flat_fields(COMMANDS[command]):
            if name in ("preset", "run_dir") or (command == "resume" and name in ("out", "lengthen")):
                continue
            wrong = [value for value in values_for(kind) if value not in LEGAL_OF[name]]
            for value in wrong[:2] if (name, kind) in seen else wrong:
                yield command, name, value
            seen.add((name, kind))


def arguments_for(command, name, value):
    first = {"resume": "RUN"}.get(command, PRESET.get(name, "digits"))
    setting = SETTING.get(name, []) if command != "resume" else []
    setting = [*setting, "--grid", "scale=5"] if command == "search" and name != "grid" else setting
    return [command, first, *setting, f"--{name.replace('_', '-')}={value}"]


CONTRADICTIONS = [
    "train cifar10-resnet18 --feature-dim 64",
    "train ufm-10 --flip",
    "train digits --batch-size 1",
    "train digits --crop-size 9",
    "train digits --accelerator mps",
    "compare digits --heads",
    "compare digits --seeds 0 -1",
    "search ufm-10 --grid scale=5",
    "compare digits --precision 16-mixed",
    "train digits more words",
    "train digits --experiment a\0b",
    "train digits --out FILE/below",
    f"train digits --out {'n' * 300}",
    "train --data FOLDER",
    "resume RUN --epochs 1",
    "upgrade",
    "upgrade RUN",
    "upgrade FOLDER --head cosine",
    "upgrade RUN --frame 2",
    "upgrade RUN --upgrade-of some",
    "train digits --head anchored",
    "report RUN --out FILE",
    f"report RUN --out OTHER --epochs {HUGE}",
    "data nowhere",
    "export RUN --to model.txt",
    "export RUN",
    f"measure ARRAYS --num-classes {HUGE}",
    "measure ARRAYS --global-mean median",
    "melt",
]
LINES = [arguments_for(*case) for case in generated()] + [line.split(" ") for line in CONTRADICTIONS]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    from guided_collapse.experiments.loop import train
    from tests.experiments.runs import FREE, placed

    folder = tmp_path_factory.mktemp("malformed")
    (folder / "file").write_text("in the way")
    (folder / "folder").mkdir()
    np.savez(folder / "arrays.npz", features=np.random.default_rng(0).normal(size=(9, 4)), labels=np.arange(9) % 3)
    return {
        "RUN": str(train(FREE, placed(folder / "runs")).path),
        "FILE": str(folder / "file"),
        "FOLDER": str(folder / "folder"),
        "OTHER": str(folder / "other"),
        "ARRAYS": str(folder / "arrays.npz"),
    }


@pytest.fixture
def _nothing_begins(monkeypatch, tmp_path):
    from guided_collapse.experiments import loop

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GUIDED_COLLAPSE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(loop.Training, "run_to_the_end", lambda *_: pytest.fail("it is being trained"))


def status_of(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return main(arguments)
        except SystemExit as end:
            return end.code


@pytest.mark.usefixtures("_nothing_begins")
@pytest.mark.parametrize("arguments", LINES, ids=lambda arguments: " ".join(arguments).replace("\0", "NUL")[:80])
def test_a_malformed_command_line_is_refused_in_words(arguments, places, capsys):
    filled = []
    for argument in arguments:
        name = argument.split("/")[0]
        filled.append(argument.replace(name, places[name], 1) if name in places else argument)
    assert status_of(filled) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip()
    assert "Traceback" not in printed.err
    assert not any(Path().rglob("*.safetensors"))
