"""Trains a new model whose queries match the gallery that an old model embedded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from guided_collapse.experiments.configuration import Configuration, Placement
from guided_collapse.experiments.data.batches import ProcessShare
from guided_collapse.experiments.errors import RequestError, requested
from guided_collapse.experiments.export import trained_model
from guided_collapse.experiments.launch import build_fabric
from guided_collapse.experiments.loop import train
from guided_collapse.experiments.run import Inputs, RunFolder, configuration_of
from guided_collapse.experiments.tasks import Task, build_task, new_backbone
from guided_collapse.heads.anchored import AnchoredHead
from guided_collapse.metrics.cross_tests import CompatibilityResult, compatibility
from guided_collapse.metrics.embeddings import Embeddings
from guided_collapse.sampling import world_size_and_rank

# The fields that decide which samples a configuration trains and tests on, and in which batches.
DATA_FIELDS = (
    *("data", "test_features", "test_fraction", "validation_fraction", "images_per_class", "long_tail", "long_tail_ratio"),
    *("batch_size", "seed"),
)


class Upgrade(NamedTuple):
    """The new run, and cross-tests of all models, named by generation; the tests are None in all but the first process."""

    run: RunFolder
    tests: CompatibilityResult | None


def upgrade(old: RunFolder, configuration: Configuration, placement: Placement, *, galleries: Sequence[RunFolder] = ()) -> Upgrade:
    """Trains a new model for the gallery of an old run, and tests its queries in the galleries of all older runs.

    The gallery is the training images of the configuration's data, and the queries are its test images.

    Args:
        old: a finished run on images or features. An anchored head takes its rows from this run: the class means of the old model
            on the new training samples. If the old head is itself anchored, the classes that it knows keep its rows, so that all
            generations share the space of the first one.
        configuration: the new run; with head anchored, `upgrade_of` must be the checksum of the old run's model.
        placement: where to train and to compute embeddings.
        galleries: more finished runs whose galleries are tested, oldest first.

    Raises:
        RequestError, DamageError: if a run is not finished and intact, or the data do not fit it; nothing is written then.
    """
    widths = {f"{run.path}": run.exportable()[0].feature_dim for run in (*galleries, old)}
    for run in (*galleries, old):
        channels = cast(Inputs, samples_for(run, configuration, placement).input_facts()).shape[0]  # raises if the data do not fit
    new_width = new_backbone(configuration, 3 if configuration.is_timm else channels).feature_dim
    old_width = widths[f"{old.path}"]
    if configuration.upgrade_of is None:
        widths["the new network"] = new_width
    elif configuration.optimizer == "agd" and new_width != old_width:
        raise RequestError(
            f"agd allows no biases, but the neck from {new_width} features to the {old_width} of {old.path} has one; "
            f"got optimizer agd. Choose --optimizer sgd or adamw, or --feature-dim {old_width}."
        )
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{width} of {name}" for name, width in widths.items())
        raise RequestError(f"embeddings must have the same width to be compared; got {found}. Choose --head anchored.")
    new = train(configuration, placement, anchors=lambda: anchors(old, configuration, placement))
    if world_size_and_rank()[1] > 0:
        return Upgrade(new, None)
    generations = {f"generation {number}": run for number, run in enumerate((*galleries, old, new), 1)}
    vectors = {name: embedded(run, configuration, placement) for name, run in generations.items()}
    stored, queries = ({name: parts[side] for name, parts in vectors.items()} for side in (0, 1))
    return Upgrade(new, compatibility(list(generations), stored, queries))


def anchors(old: RunFolder, configuration: Configuration, placement: Placement) -> Tensor:
    """Returns the rows for an anchored head, (num_classes, feature_dim of the old run)."""
    task, model = samples_for(old, configuration, placement), trained_model(old)
    share, head = on_one_device(configuration, placement), model.head
    if isinstance(head, AnchoredHead) and configuration.frame > 0:
        raise RequestError(
            "frame must be 0 if the old run is itself anchored, because moving the rows again would not match the first gallery; "
            f"got {configuration.frame} for {old.path}. Leave out --frame."
        )
    with requested():
        rows = AnchoredHead.from_model(
            model.to(share.device),
            task.clean_batches(share, test=False),
            num_classes=task.num_classes,
            classifier=head if isinstance(head, nn.Linear) else None,
            frame=configuration.frame,
        ).rows.cpu()
    if isinstance(head, AnchoredHead):
        _, inputs = old.exportable()
        known = {name: number for number, name in enumerate(inputs.class_names)}
        for number, name in enumerate(cast(Inputs, task.input_facts()).class_names):
            if name in known:
                rows[number] = head.rows[known[name]]
    return rows


def embedded(run: RunFolder, configuration: Configuration, placement: Placement) -> tuple[Embeddings, Embeddings]:
    """Returns a run's embeddings of the configuration's training images, and of its test images."""
    share = on_one_device(configuration, placement)
    model, task = trained_model(run).to(share.device), samples_for(run, configuration, placement)
    parts = []
    with torch.no_grad():
        for test in (False, True):
            found = [(model.embed(images).cpu(), labels.cpu()) for images, labels in task.clean_batches(share, test=test)]
            parts.append(Embeddings(*(torch.cat(tensors) for tensors in zip(*found, strict=True))))
    return parts[0], parts[1]


def samples_for(run: RunFolder, configuration: Configuration, placement: Placement) -> Task:
    """Returns the configuration's data as a finished run's model expects them: at its image size, normalized by its statistics."""
    facts, inputs = run.exportable()
    own = configuration_of(facts)
    size = None if configuration.has_features or own.crop_size else inputs.shape[1]
    chosen = {name: getattr(configuration, name) for name in DATA_FIELDS}
    with requested():
        loaded = replace(own, **chosen, image_size=own.image_size or size, random_resized=False)
        return build_task(loaded, num_workers=placement.num_workers, data_root=placement.data_root).normalized_for(inputs)


def on_one_device(configuration: Configuration, placement: Placement) -> ProcessShare:
    """Returns the share of a single process, which has all samples, on the first device of the placement."""
    return ProcessShare(device=build_fabric(replace(placement, devices=1, nodes=1), configuration.precision).device)
