"""Writes the features that a model computes, for heads that are trained on them alone."""

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.data.known import FEATURE_FILES
from guided_collapse.experiments.errors import check_choice, requested
from guided_collapse.experiments.export import trained_model
from guided_collapse.experiments.files import write_bytes
from guided_collapse.experiments.run import RunFolder, configuration_of
from guided_collapse.experiments.tasks import Task, build_task, random_generator
from guided_collapse.experiments.upgrade import on_one_device, samples_for


def features_of_run(run: RunFolder, data: str | None, file: Path, placement: Placement) -> None:
    """Writes what the head of a finished run sees of all samples of `data`, which may be None for the run's own."""
    own = configuration_of(run.exportable()[0])
    with requested():
        configuration = replace(own, data=data or own.data, images_per_class=None, long_tail="none", validation_fraction=None)
    model = trained_model(run)
    write_features(model, model.features, samples_for(run, configuration, placement), file, placement)


def features_of_network(configuration: Configuration, file: Path, placement: Placement) -> None:
    """Writes what the pretrained network computes of all samples, both named by the configuration."""
    with requested():
        task = build_task(configuration, num_workers=placement.num_workers, data_root=placement.data_root)
        network = task.backbone(random_generator(configuration.seed))
    write_features(network, network, task, file, placement)


def write_features(
    model: torch.nn.Module, compute: Callable[[Tensor], Tensor], task: Task, file: Path, placement: Placement
) -> None:
    """Writes features, labels, test_features and test_labels, of images without augmentation, completely or not at all."""
    check_choice("the suffix of the file", file.suffix, FEATURE_FILES)
    share = on_one_device(task.configuration, placement)
    model.to(share.device).eval()
    arrays: dict[str, Any] = {}
    with torch.no_grad():
        for prefix, test in (("", False), ("test_", True)):
            found = [(compute(inputs).cpu(), labels.cpu()) for inputs, labels in task.clean_batches(share, test=test)]
            features, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
            arrays |= {f"{prefix}features": features, f"{prefix}labels": labels}
    content = BytesIO()
    if file.suffix == ".npz":
        np.savez(content, **{name: array.numpy() for name, array in arrays.items()})
    else:
        content.write(save({name: array.contiguous() for name, array in arrays.items()}))
    with requested():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content.getvalue())
