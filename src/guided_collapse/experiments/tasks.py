"""Tasks (labeled images, given features, or unconstrained features) and the models for them."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from guided_collapse.experiments.backbones import BACKBONES, NETWORK_FIELDS, build_backbone
from guided_collapse.experiments.backbones.backbone import Backbone, ImageBackbone, UnconstrainedFeatures, initialize
from guided_collapse.experiments.backbones.pretrained import expected
from guided_collapse.experiments.configuration import Configuration
from guided_collapse.experiments.data.augment import PixelStatistics, augment, center_crop, normalize, pixel_statistics
from guided_collapse.experiments.data.batches import Batch, ProcessShare, ShuffledBatchSampler, batches
from guided_collapse.experiments.data.features import feature_statistics, load_features
from guided_collapse.experiments.data.folders import load_folder
from guided_collapse.experiments.data.known import KNOWN, check_source
from guided_collapse.experiments.data.sources import load_data
from guided_collapse.experiments.data.split import ImageData, few_of_each, hold_out_fraction, in_color, long_tailed
from guided_collapse.experiments.heads import build_head
from guided_collapse.experiments.run import Inputs
from guided_collapse.heads.anchored import AnchoredHead
from guided_collapse.heads.classifier import Classifier
from guided_collapse.heads.head import Head
from guided_collapse.sampling import SeededBatchSampler, StratifiedBatchSampler

Chosen = Iterable[list[int]]  # the indices of the samples of each batch
LARGEST_MEASURED_BATCH = 1000
BACKBONE, HEAD, OPTIMIZER, AUGMENTATION, NECK = range(5)  # purposes of random generators


def random_generator(*key: int) -> torch.Generator:
    """Returns a CPU generator seeded with these numbers alone: the seed, its purpose, the epoch, the process."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


class Task(ABC):
    """Batches for training and measurement, and the backbone that fits them."""

    fills_memory = True  # whether training batches may fill the memory, so that measurement must not use larger ones

    def __init__(self, configuration: Configuration, train_labels: Tensor, num_test: int, num_classes: int) -> None:
        self.configuration = configuration
        self.train_labels = train_labels
        self.num_train, self.num_test, self.num_classes = len(train_labels), num_test, num_classes

    @abstractmethod
    def backbone(self, generator: torch.Generator, *, fresh: bool = True) -> Backbone:
        """Returns a new backbone; `fresh=False` skips pretrained weights, because a checkpoint will provide the state."""

    @property
    def summary(self) -> str:
        """The number of training samples, their shape, and the number of classes, for the display."""
        inputs = self.input_facts()
        shape = "" if inputs is None else f" of {' x '.join(map(str, inputs.shape[-2:]))}"
        return f"{self.num_train:,} samples{shape} in {self.num_classes:,} classes"

    def input_facts(self) -> Inputs | None:
        """Returns what an exported model needs to know about its inputs; None if there is no model to export."""
        return None

    def normalized_for(self, inputs: Inputs) -> Self:
        """Returns the same samples, normalized as a trained model expects them; raises ValueError if they do not fit the model."""
        raise ValueError("a trained model needs images or a file of features; got unconstrained features.")

    @abstractmethod
    def _load(self, chosen: Chosen, device: torch.device, source: torch.Generator | None, *, test: bool) -> Iterator[Batch]:
        """Yields batches of the chosen samples in the form that the network takes, augmented if `source` is not None."""

    def training_batches(self, epoch: int, share: ProcessShare) -> Iterator[Batch]:
        """Yields this process's part of the batches of an epoch, counted from 1.

        In the fair protocol, all heads with the same seed get the same batches.
        """
        source = random_generator(self.configuration.seed, AUGMENTATION, epoch, share.rank)
        return self._load(share.of_batches(self._sampler(epoch)), share.device, source, test=False)

    def clean_batches(self, share: ProcessShare, *, test: bool) -> Iterator[Batch]:
        """Yields this process's share of the samples, in order, without augmentation, in batches that fit into memory."""
        of_training = max(self.configuration.batch_size // share.processes, 1)
        size = min(LARGEST_MEASURED_BATCH, of_training) if self.fills_memory else LARGEST_MEASURED_BATCH
        chosen = share.in_order(self.num_test if test else self.num_train, batch_size=size)
        return self._load(chosen, share.device, None, test=test)

    def first_samples(self, num_classes: int, per_class: int, device: torch.device) -> Batch:
        """Returns the first training samples of each of the first classes, in order of their class, without augmentation."""
        of_each = [(self.train_labels == label).nonzero()[:per_class, 0] for label in range(num_classes)]
        return next(self._load([torch.cat(of_each).tolist()], device, None, test=False))

    def steps_per_epoch(self) -> int:
        """Returns the number of batches in an epoch."""
        return len(self._sampler(1))

    def _sampler(self, epoch: int) -> SeededBatchSampler:
        """Returns the sampler of an epoch, the same for every number of processes and, in the fair protocol, for every head."""
        size, seed = min(self.configuration.batch_size, self.num_train), self.configuration.seed
        sampler: SeededBatchSampler
        if self.configuration.takes_stratified_batches:
            sampler = StratifiedBatchSampler(self.train_labels, size, num_replicas=1, rank=0, seed=seed)
        else:
            sampler = ShuffledBatchSampler(self.num_train, size, seed=seed)
        sampler.set_epoch(epoch)
        return sampler


class ImageTask(Task):
    """Images, augmented for training and unchanged for measurement; `statistics` normalize their pixels."""

    def __init__(self, configuration: Configuration, data: ImageData, statistics: PixelStatistics, *, num_workers: int = 0) -> None:
        super().__init__(configuration, data.train.labels, len(data.test), data.num_classes)
        self.data, self.statistics, self.num_workers = data, statistics, num_workers

    def backbone(self, generator: torch.Generator, *, fresh: bool = True) -> Backbone:
        """Returns the network that the configuration names; raises ValueError if it needs larger images."""
        network = new_backbone(self.configuration, self.data.image_shape[0], generator, fresh=fresh)
        size = min(self.input_facts().shape[1:])
        if isinstance(network, ImageBackbone) and size < network.smallest_size:
            raise ValueError(
                f"images must be at least {network.smallest_size} x {network.smallest_size} for {self.configuration.backbone}; "
                f"those of {self.data.name} are {size} x {size}. Enlarge them with --image-size {2 * network.smallest_size}, "
                "or choose --backbone small."
            )
        return network

    def input_facts(self) -> Inputs:
        """Returns the shape and normalization of the inputs, and the names of the classes."""
        (channels, height, width), size = self.data.image_shape, self.configuration.crop_size
        return Inputs((channels, size or height, size or width), *self.statistics, self.data.class_names)

    def normalized_for(self, inputs: Inputs) -> Self:
        """Returns the same images, normalized as the model expects them; raises ValueError if their number of channels differs."""
        if self.data.image_shape[0] != inputs.shape[0]:
            raise ValueError(f"images must have {inputs.shape[0]} channels; {self.data.name} has {self.data.image_shape[0]}.")
        return type(self)(self.configuration, self.data, PixelStatistics(inputs.mean, inputs.std), num_workers=self.num_workers)

    def _load(self, chosen: Chosen, device: torch.device, source: torch.Generator | None, *, test: bool) -> Iterator[Batch]:
        split, augmentation = self.data.test if test else self.data.train, self.configuration.augmentation
        for images, labels in batches(split, chosen, device=device, num_workers=self.num_workers):
            if source is not None:
                images = augment(images, augmentation, source)
            elif augmentation.crop_size is not None:
                images = center_crop(images, augmentation.crop_size)
            yield Batch(normalize(images, *self.statistics), labels)


class UnconstrainedTask(Task):
    """Unconstrained features: sample i has class i mod num_classes, and inputs are the samples' indices. There is no test set."""

    def __init__(self, configuration: Configuration) -> None:
        num_samples, num_classes = configuration.num_samples or 0, configuration.num_classes or 0
        super().__init__(configuration, torch.arange(num_samples) % num_classes, 0, num_classes)

    def backbone(self, generator: torch.Generator, *, fresh: bool = True) -> Backbone:
        """Returns one free feature vector for each sample."""
        feature_dim = self.configuration.feature_dim or self.num_classes
        return UnconstrainedFeatures(self.num_train, feature_dim, generator=generator)

    def _load(self, chosen: Chosen, device: torch.device, source: torch.Generator | None, *, test: bool) -> Iterator[Batch]:
        for batch in chosen:
            indices = torch.tensor(batch)
            yield Batch(indices.to(device), self.train_labels[indices].to(device))


class FeatureTask(Task):
    """Features that another model computed, centered and divided by their root mean square deviation."""

    fills_memory = False

    def __init__(self, configuration: Configuration, data: ImageData, mean: Tensor, std: float) -> None:
        super().__init__(configuration, data.train.labels, len(data.test), data.num_classes)
        self.data, self.mean, self.std = data, mean, std

    def backbone(self, generator: torch.Generator, *, fresh: bool = True) -> Backbone:
        """Returns the neck that the configuration names."""
        return new_backbone(self.configuration, len(self.mean), generator)

    def input_facts(self) -> Inputs:
        """Returns the shape and normalization of the inputs, and the names of the classes."""
        return Inputs((len(self.mean),), tuple(self.mean.tolist()), (self.std,) * len(self.mean), self.data.class_names)

    def normalized_for(self, inputs: Inputs) -> Self:
        """Returns the same features, normalized as the model expects them; raises ValueError if they have another width."""
        if (len(self.mean),) != inputs.shape:
            raise ValueError(f"features must have width {inputs.shape[0]}; {self.data.name} has {len(self.mean)}.")
        return type(self)(self.configuration, self.data, torch.tensor(inputs.mean), inputs.std[0])

    def _load(self, chosen: Chosen, device: torch.device, source: torch.Generator | None, *, test: bool) -> Iterator[Batch]:
        mean = self.mean.to(device)
        for features, labels in batches(self.data.test if test else self.data.train, chosen, device=device):
            yield Batch((features - mean) / self.std, labels)


def new_backbone(
    configuration: Configuration, in_channels: int, generator: torch.Generator | None = None, *, fresh: bool = False
) -> Backbone:
    """Returns the network that the configuration names; loads pretrained weights only if `fresh` is true."""
    declared = BACKBONES[configuration.backbone.partition(":")[0]].options
    given = {field.name for field in fields(configuration) if getattr(configuration, field.name) != field.default}
    # `build_backbone` rejects options that the network does not take.
    options = {name: getattr(configuration, name) for name in (given & set(NETWORK_FIELDS)) | set(declared) - {"in_channels"}}
    if configuration.is_timm and not fresh:
        options |= {"pretrained": False, "weights": None}
    return build_backbone(configuration.backbone, in_channels=in_channels, **options, generator=generator)


def build_model(
    configuration: Configuration, task: Task, device: torch.device, rows: Tensor | None = None, *, fresh: bool = True
) -> Classifier:
    """Returns the untrained model, still on the CPU; all heads with the same seed start from the same backbone.

    An anchored head takes the given rows, (num_classes, width of the old embeddings). `fresh` is as for `Task.backbone`.
    """
    backbone = task.backbone(random_generator(configuration.seed, BACKBONE), fresh=fresh)
    feature_dim = backbone.feature_dim if rows is None else rows.shape[1]
    head = build_head(configuration, feature_dim, task.num_classes, random_generator(configuration.seed, HEAD))
    if isinstance(head, AnchoredHead) and rows is not None:
        head.rows.copy_(rows)
    # Channels last is faster on a CPU; on MPS it is reported to give wrong gradients (pytorch/pytorch#175189).
    layout = torch.channels_last if device.type == "cpu" else torch.contiguous_format
    model = joined(backbone, head, random_generator(configuration.seed, NECK))
    return model.to(memory_format=layout)  # type: ignore[call-overload]


def joined(backbone: Backbone, head: Head | nn.Linear, generator: torch.Generator) -> Classifier:
    """Returns the backbone and the head as a model; if their widths differ, a neck with random weights connects them."""
    if head.in_features == backbone.feature_dim:
        return Classifier(backbone, head)
    model = Classifier(backbone, head, neck=backbone.feature_dim)
    initialize(cast(nn.Linear, model.neck), generator)
    return model


def head_of(model: Classifier) -> Head | nn.Linear:
    """Returns the head of a model that `build_model` made."""
    return cast(Head | nn.Linear, model.head)


def build_task(configuration: Configuration, *, num_workers: int = 0, data_root: Path | None = None) -> Task:
    """Returns the task that the configuration names; raises MissingData, with the download command, if its data set is missing."""
    if configuration.is_unconstrained:
        return UnconstrainedTask(configuration)
    check_source(configuration.data)
    if configuration.has_features:
        test_file = None if configuration.test_features is None else Path(configuration.test_features)
        data = load_features(Path(configuration.data), test_file, test_fraction=configuration.test_fraction)
        statistics = None
    else:
        data, statistics = _images(configuration, data_root)
    if configuration.images_per_class is not None:
        data = replace(data, train=few_of_each(data.train, configuration.images_per_class))
    if configuration.long_tail != "none":
        data = replace(data, train=long_tailed(data.train, kind=configuration.long_tail, ratio=configuration.long_tail_ratio))
    if configuration.validation_fraction is not None:
        parts = hold_out_fraction(data.train.labels, configuration.validation_fraction, seed=None)
        data = replace(data, train=data.train.take(parts.train), test=data.train.take(parts.test))
    if statistics is None:
        return FeatureTask(configuration, data, *feature_statistics(cast(Tensor, data.train.images)))
    return ImageTask(configuration, data, statistics, num_workers=num_workers)


def _images(configuration: Configuration, data_root: Path | None) -> tuple[ImageData, PixelStatistics]:
    """Returns the images, by default at the size that a timm backbone expects, and the statistics that normalize them."""
    model = expected(configuration.backbone.removeprefix("timm:")) if configuration.is_timm else None
    size = configuration.image_size or (model.image_size if model else None)
    if configuration.data in KNOWN:
        data = load_data(configuration.data, root=data_root, image_size=size)
        statistics = PixelStatistics(KNOWN[configuration.data].mean, KNOWN[configuration.data].std)
    else:
        data = load_folder(Path(configuration.data), image_size=size, test_fraction=configuration.test_fraction)
        statistics = pixel_statistics(data.train)
    return (data, statistics) if model is None else (in_color(data), PixelStatistics(model.mean, model.std))
