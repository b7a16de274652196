import json
import subprocess
import sys
from dataclasses import replace

import pytest

from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.presets import PRESETS

IMAGES = {"experiment": "x", "data": "digits", "backbone": "small"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_configuration_survives_json(name):
    configuration = PRESETS[name].resolved()
    assert Configuration(**json.loads(json.dumps(configuration.to_dict()))) == configuration


def test_the_resolved_configuration_has_the_optimizers_defaults():
    sgd = Configuration(**IMAGES, optimizer="sgd")
    assert sgd.resolved() == replace(sgd, learning_rate=0.1, weight_decay=5e-4, schedule="cosine")
    assert replace(sgd, learning_rate=0.3).resolved().learning_rate == 0.3
    assert Configuration(**IMAGES).resolved().learning_rate is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "nearest"}, "^head must be 'linear', .* or 'anchored'; got 'nearest'"),
        ({"epochs": 0}, "epochs must be at least 1; got 0"),
        ({"seed": "5"}, "seed must be a valid integer; got '5'"),
        ({"scale": 0.0}, "scale must be greater than 0; got 0.0"),
        ({"test_fraction": float("nan")}, "test_fraction must be a finite number; got nan"),
        ({"learning_rate": 0.1}, "agd has no learning rate"),
        ({"num_samples": 10}, "images take none; .*num_samples=10"),
        ({"backbone": "unconstrained", "num_samples": 10, "num_classes": 2}, "unconstrained features need"),
        ({"random_resized": True, "crop_padding": 2}, "random_resized cannot be combined with padding"),
        ({"experiment": ".."}, "experiment must be a folder name: .*; got '..'.*--out"),
        ({"experiment": "a/b"}, "experiment must be a folder name"),
        ({"experiment": "n" * 300}, "experiment must be a folder name: at most 150"),
        ({"color": "red"}, "color is not a known field; got color='red'"),
    ],
)
def test_bad_values_are_refused_in_words(changes, message):
    with pytest.raises(RequestError, match=message):
        Configuration(**{**IMAGES, **changes})
    if set(changes) <= set(IMAGES) | set(Configuration(**IMAGES).to_dict()):
        with pytest.raises(RequestError, match=message):
            replace(Configuration(**IMAGES), **changes)


def test_a_whole_number_is_a_number_and_missing_fields_are_named():
    assert Configuration(**IMAGES, scale=5).scale == 5.0
    with pytest.raises(RequestError, match=r"data is required.* backbone is required"):
        Configuration(experiment="x")


def test_placements_are_checked_too():
    assert Placement(devices=4, nodes=2).processes == 8
    for changes in ({"devices": 0}, {"num_workers": -1}, {"checkpoint_seconds": -1.0}, {"accelerator": "tpu"}, {"nodes": 1.5}):
        with pytest.raises(RequestError, match=f"{next(iter(changes))} must be .*; got"):
            Placement(**changes)


def test_configurations_heads_and_records_do_not_wait_for_torch():
    program = (
        "import sys, guided_collapse.experiments.presets, guided_collapse.experiments.records; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
