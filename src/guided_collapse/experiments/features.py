"""Writes the features that a model computes, so that heads can be trained on them alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.data.features import as_file
from guided_collapse.experiments.data.known import FEATURE_FILES
from guided_collapse.experiments.errors import requested
from guided_collapse.experiments.export import check_target, trained_model
from guided_collapse.experiments.files import write_bytes
from guided_collapse.experiments.run import Inputs, RunFolder, configuration_of
from guided_collapse.experiments.tasks import Task, build_task, random_generator
from guided_collapse.experiments.upgrade import on_one_device, samples_for


def features_of_run(run: RunFolder, data: str | None, file: Path, placement: Placement) -> None:
    """Writes the features that the head of a finished run receives for every sample of `data`, by default the run's own data."""
    check_target(file, FEATURE_FILES)
    own = configuration_of(run.exportable()[0])
    with requested():
        source = own if data is None else replace(own, data=data, test_features=None)
        configuration = replace(source, images_per_class=None, long_tail="none", validation_fraction=None)
    model = trained_model(run)
    _write(model, model.features, samples_for(run, configuration, placement), file, placement)


def features_of_network(configuration: Configuration, file: Path, placement: Placement) -> None:
    """Writes the features that the configuration's network computes for every sample of its data."""
    check_target(file, FEATURE_FILES)
    with requested():
        task = build_task(configuration, num_workers=placement.num_workers, data_root=placement.data_root)
        network = task.backbone(random_generator(configuration.seed))
    _write(network, network, task, file, placement)


def _write(model: torch.nn.Module, compute: Callable[[Tensor], Tensor], task: Task, file: Path, placement: Placement) -> None:
    """Writes features, labels, test_features, test_labels and class names atomically, without augmentation."""
    share = on_one_device(task.configuration, placement)
    model.to(share.device).eval()
    arrays: dict[str, Tensor] = {}
    with torch.no_grad():
        for prefix, test in (("", False), ("test_", True)):
            found = [(compute(inputs).cpu(), labels.cpu()) for inputs, labels in task.clean_batches(share, test=test)]
            features, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
            arrays |= {f"{prefix}features": features, f"{prefix}labels": labels}
    content = as_file(arrays, cast(Inputs, task.input_facts()).class_names, file.suffix)
    with requested():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content)
