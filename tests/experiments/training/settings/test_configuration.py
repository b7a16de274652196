import json
from pathlib import Path

import pytest

from guided_collapse.experiments.presets import PRESETS
from guided_collapse.experiments.configuration import Configuration

RECORDS = Path(__file__).parents[3] / "results" / "records"
# Fields that the records do not have, and what they mean without them.
YOUNGER = {"measure_first": 10, "validation_fraction": None, "images_per_class": None, "solver": None, "every": 1}
IMAGES = {"experiment": "x", "data": "digits", "backbone": "small"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_survives_json(name):
    configuration = PRESETS[name].resolved()
    assert Configuration.from_dict(json.loads(json.dumps(configuration.to_dict()))) == configuration


def test_resolved_configuration_states_what_the_optimizer_uses():
    assert Configuration(**IMAGES, optimizer="sgd").resolved().to_dict() | {} == {
        **Configuration(**IMAGES, optimizer="sgd").to_dict(),
        "learning_rate": 0.1,
        "weight_decay": 5e-4,
        "schedule": "cosine",
    }
    assert Configuration(**IMAGES, optimizer="sgd", learning_rate=0.3).resolved().learning_rate == 0.3
    assert Configuration(**IMAGES).resolved().learning_rate is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "implict"}, "head must be one of linear, .*; got 'implict'. Did you mean implicit"),
        ({"backbone": "resnet19"}, "Did you mean resnet18"),
        ({"optimizer": "adam"}, "optimizer must be one of agd, sgd, adamw"),
        ({"protocol": "unfair"}, "protocol must be one of fair, paper"),
        ({"epochs": 0}, "epochs must be positive; got 0"),
        ({"batch_size": -1}, "batch_size must be positive; got -1"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"seed": -1}, "seed must be from 0"),
        ({"learning_rate": 0.1}, "agd has no learning rate"),
        ({"schedule": "cosine"}, "agd has no learning rate"),
        ({"num_samples": 10}, "images need neither; .*num_samples=10"),
        ({"data": "unconstrained"}, "unconstrained features need"),
        ({"rotation": 400.0}, "rotation must be from 0 to 180"),
        ({"epochs": 10**20}, "epochs must be at most 2147483647; got 100000000000000000000"),
        ({"epochs": 2.5}, "epochs must be a whole number; got 2.5"),
        ({"epochs": None}, "epochs must be a whole number; got None"),
        ({"width": 1e308}, "width must be at most 1000000000; got 1e\\+308"),
        ({"width": 2000.0}, "width must be positive and at most 1000; got 2000"),
        ({"test_fraction": float("nan")}, "test_fraction must be between 0 and 1; got nan"),
        ({"test_fraction": -1.0}, "test_fraction must be between 0 and 1; got -1"),
        ({"momentum": 1.0}, "momentum must be from 0 to less than 1; got 1.0"),
        ({"image_size": 0}, "image_size must be positive; got 0"),
        ({"num_classes": 0}, "num_classes must be at least 2; got 0"),
        ({"experiment": ".."}, "experiment must be the name of a folder: .*; got '..'.*--out"),
        ({"experiment": "a/b"}, "experiment must be the name of a folder"),
        ({"experiment": "a\0b"}, "experiment must be the name of a folder"),
        ({"experiment": "\udcff"}, "experiment must be the name of a folder"),
        ({"experiment": "n" * 300}, "got 'nnnnnnnnnnnnnnnnnnnn... of 300 bytes'"),
    ],
)
def test_bad_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Configuration(**{**IMAGES, **changes})


def test_unknown_fields_are_refused():
    with pytest.raises(ValueError, match="unknown to this version: color"):
        Configuration.from_dict({**IMAGES, "color": "red"})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("experiment", 5, "experiment must be text; got 5"),
        ("seed", "5", "seed must be a whole number; got '5'"),
        ("seed", True, "seed must be a whole number; got True"),
        ("epochs", 2.0, "epochs must be a whole number; got 2.0"),
        ("scale", "5", "scale must be a number; got '5'"),
        ("scale", True, "scale must be a number; got True"),
        ("scale", None, "scale must be a number; got None"),
        ("width", [1], r"width must be a number or null; got \[1\]"),
        ("flip", 1, "flip must be true or false; got 1"),
        ("head", ["nearest-etf"], "head must be one of standard"),
        ("stem", "paper", "stem must be one of imagenet, cifar; got 'paper'"),
    ],
)
def test_values_of_another_type_are_refused(field, value, message):
    with pytest.raises(ValueError, match=message):
        Configuration.from_dict({**IMAGES, field: value})


def test_no_field_takes_an_object():
    for field in Configuration(**IMAGES).to_dict():
        with pytest.raises(ValueError, match=f"^{field} must be "):
            Configuration.from_dict({**IMAGES, field: {}})


def test_a_whole_number_is_a_number():
    assert Configuration.from_dict({**IMAGES, "scale": 5}).scale == 5.0


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match="must have the fields data, backbone; they are missing"):
        Configuration.from_dict({"experiment": "x"})


@pytest.mark.parametrize("file", sorted(RECORDS.rglob("config.json")), ids=lambda file: str(file.relative_to(RECORDS)))
def test_recorded_configurations_are_still_read(file):
    values = json.loads(file.read_text())["configuration"]
    assert Configuration.from_dict(values).to_dict() == {**YOUNGER, **values}
