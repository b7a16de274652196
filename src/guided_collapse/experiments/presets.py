"""Named configurations, from presets.toml: one for each experiment of the paper, and smaller ones for a CPU."""

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.data.known import FEATURE_FILES
from guided_collapse.experiments.errors import check_choice

_TABLES = tomllib.loads(resources.files("guided_collapse.experiments").joinpath("presets.toml").read_text(encoding="utf-8"))
_CONFIGURATIONS = {name: Configuration(experiment=name, **fields) for name, fields in _TABLES.items()}

OWN_IMAGES = _CONFIGURATIONS.pop("images")
"""The starting point for a user's own class folders."""

FINE_TUNING = _CONFIGURATIONS.pop("fine-tuning")
"""The starting point for a pretrained network."""

FEATURES = _CONFIGURATIONS.pop("features")
"""The starting point for a file of features."""

OWN_DATA = (OWN_IMAGES, FINE_TUNING, FEATURES)
"""The starting points for a user's own data; the experiment is named after the data."""

PRESETS: Mapping[str, Configuration] = _CONFIGURATIONS
"""All presets, by the name of their experiment."""


def named_after(data: str) -> str:
    """Returns the name of the experiment for a user's own folder, file of features, or data set."""
    place = Path(data).resolve()
    name = place.stem if data.endswith(FEATURE_FILES) else place.name
    return re.sub(r"^\W+", "", name) or "data"  # the name of a hidden folder starts with a dot


def preset(name: str) -> Configuration:
    """Returns the preset of this name.

    Raises:
        RequestError: for an unknown name; the message suggests the closest ones.

    Example:
        >>> from guided_collapse.experiments import preset
        >>> preset("cifar10-resnet18").backbone
        'resnet18'
    """
    check_choice("the experiment", name, tuple(PRESETS), shown_by="guided-collapse list")
    return PRESETS[name]
