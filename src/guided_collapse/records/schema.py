"""What runs leave on disk: the files, and every field of what is written in JSON or as arrays.

This is the one place that names them; whoever writes or reads a record does it through these classes. Files:

| file | holds |
|---|---|
| `config.json` | `RunFacts`: what was asked for, what it ran on |
| `metrics.jsonl` | an `EpochRecord` on each line |
| `margins.npz` | sorted cosine margins, an array for each of `SPLITS` |
| `trace.npz` | `Trace`: what the animation shows |
| `failed.json` | `Failure`: why a run ended before its end |
| `cost.json` | `CostRecord`: what heads cost in an experiment |
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from guided_collapse.records.fields import (
    Record,
    RecordError,
    each,
    number_field,
    numbers_field,
    object_field,
    or_none,
    text_field,
    texts_field,
    whole_field,
)

FORMAT = 1
"""The version of everything that is written in JSON; readers refuse another."""

CONFIG = "config.json"
METRICS = "metrics.jsonl"
METRICS_BEFORE = "metrics.before.jsonl"
"""Those of a run that had to begin again."""
METRICS_COMPRESSED = "metrics.jsonl.gz"
"""In records that are kept."""
MARGINS = "margins.npz"
TRACE = "trace.npz"
LAST_CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
MODEL = "model.safetensors"
FAILURE = "failed.json"
COST = "cost.json"

SEALED = (METRICS, MARGINS, TRACE)
"""Whose checksums a finished model keeps."""
OF_A_RUN = (CONFIG, *SEALED, LAST_CHECKPOINT, PREVIOUS_CHECKPOINT, MODEL)

CHECKSUM = "sha256"
"""The field with the checksum of everything else: in `config.json`, and in the metadata of a model."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

Text = Annotated[str, text_field]
Whole = Annotated[int, whole_field]
Positive = Annotated[int, functools.partial(whole_field, least=1)]
Number = Annotated[float | None, number_field]
Amount = Annotated[float | None, functools.partial(number_field, least=0)]
Object = Annotated[Mapping[str, Any], object_field]
Numbers = Annotated[Mapping[str, float | None] | None, numbers_field]
MaybeText = Annotated[str | None, or_none(text_field)]
MaybeWhole = Annotated[int | None, or_none(whole_field)]


def _listed(header: Mapping[str, Any]) -> str:
    return " and ".join(f"{name} {value!r}" for name, value in header.items())


class VersionedRecord(Record):
    """A record that says of which version it is, and perhaps of which kind."""

    SAYS: ClassVar[str]
    """What it is the record of."""
    HEADER: ClassVar[Mapping[str, Any]]

    @classmethod
    def from_json(cls, content: object) -> Self:
        """As for every record, if the kind and the version are these."""
        got = {name: content.get(name) for name in cls.HEADER} if isinstance(content, Mapping) else {}
        if isinstance(content, Mapping) and got != cls.HEADER:
            raise RecordError(f"it must be the record of {cls.SAYS}, with {_listed(cls.HEADER)}; got {_listed(got)}")
        return super().from_json(content)

    def to_json(self) -> dict[str, Any]:
        """As for every record, after the kind and the version."""
        return {**self.HEADER, **super().to_json()}


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFacts(VersionedRecord):
    """What was asked for, and what it ran on: `config.json`, which every checkpoint and the finished model keep too.

    Attributes:
        experiment: its name.
        head: its name.
        seed: of everything random.
        configuration: what was asked for, as plain values.
        protocol: by which rules heads are compared.
        protocol_differences: what sets this head apart from the others, in words.
        num_classes: of the data.
        feature_dim: that the head sees.
        num_train: samples.
        num_test: samples.
        inputs: as `Inputs` has them; None for unconstrained features.
        global_batch: samples in a step, of all processes.
        loss_lower_bound: that no classifier with this temperature can go below; None without a temperature.
        versions: of what computes, by package.
        commit: of this package; None if it is installed.
        hardware: as `Hardware` has it.
        started: when, in the form of ISO 8601.
    """

    SAYS = "a run"
    HEADER: ClassVar = {"format": FORMAT}

    experiment: Text
    head: Text
    seed: Whole
    configuration: Object
    protocol: Text
    protocol_differences: Annotated[tuple[str, ...], texts_field]
    num_classes: Annotated[int, functools.partial(whole_field, least=2)]
    feature_dim: Positive
    num_train: Whole
    num_test: Whole
    inputs: Annotated[Mapping[str, Any] | None, or_none(object_field)] = None
    global_batch: Whole
    loss_lower_bound: Number
    versions: Object
    commit: MaybeText
    hardware: Object
    started: Text

    @property
    def planned(self) -> int | None:
        """How many epochs the run is to have; None if its configuration does not say."""
        planned = self.configuration.get("epochs")
        return planned if isinstance(planned, int) and not isinstance(planned, bool) else None

    def differs_in_length_from(self, configuration: Mapping[str, Any]) -> bool:
        """Whether the configuration is that of this run but for the number of epochs."""
        return {**self.configuration, "epochs": None} == {**configuration, "epochs": None}


def _shape_field(record: Mapping[str, Any], name: str) -> tuple[int, int, int]:
    value = record.get(name)
    if not (isinstance(value, list) and len(value) == 3 and all(type(size) is int and size > 0 for size in value)):
        raise RecordError(f"{name} must be three positive whole numbers; got {value!r}")
    channels, height, width = value
    return channels, height, width


def _channels_field(record: Mapping[str, Any], name: str) -> tuple[float, ...]:
    value = record.get(name)
    if not (isinstance(value, list) and all(type(number) in (int, float) for number in value)):
        raise RecordError(f"{name} must be a number for each channel; got {value!r}")
    return tuple(value)


@dataclass(frozen=True)
class Inputs(Record):
    """What a model must know of the images that it is given.

    Attributes:
        shape: channels, height and width.
        mean: of each channel, with values from 0 to 1.
        std: of each channel.
        class_names: in the order of the logits.
    """

    shape: Annotated[tuple[int, int, int], _shape_field]
    mean: Annotated[tuple[float, ...], _channels_field]
    std: Annotated[tuple[float, ...], _channels_field]
    class_names: Annotated[tuple[str, ...], texts_field]


@dataclass(frozen=True)
class Hardware(Record):
    """The processor, its cores, and what of them was used.

    Attributes:
        cpu: the model.
        cores: of the machine.
        threads: of each process.
        devices: the model of a GPU, or the kind of another device.
        processes: of the run.
    """

    cpu: Text
    cores: MaybeWhole
    threads: Positive
    devices: Text
    processes: Positive


@dataclass(frozen=True)
class EpochRecord(Record):
    """What was seen in an epoch: a line of `metrics.jsonl`.

    Attributes:
        epoch: from 1.
        running: loss and accuracy while training, which no curve or table rests on.
        seconds: of training; None in records that are kept without times.
        train: the measurement on the training samples, in eval mode, by name; None if there was none in this epoch.
        test: that on the test samples.
    """

    epoch: Whole
    running: Numbers = None
    seconds: Amount = None
    train: Numbers = None
    test: Numbers = None

    @classmethod
    def of_epoch(cls, number: int, content: object) -> Self:
        """The record that a JSON object holds, if it is that of this epoch."""
        record = cls.from_json(content)
        if record.epoch != number:
            raise RecordError(f"epochs must be 1, 2, 3 ... without a hole, here {number}; got {record.epoch}")
        return record

    def measured(self, split: Split) -> Mapping[str, float | None]:
        """The measurement on these samples; empty if there was none."""
        return (self.train if split == "train" else self.test) or {}

    def parts(self) -> Mapping[str, Mapping[str, float | None]]:
        """Everything that was seen, while training and in eval mode, by what it was seen on."""
        return {name: part for name, part in self.to_json().items() if isinstance(part, Mapping)}

    def to_json(self) -> dict[str, Any]:
        """As for every record, without what there was not."""
        return {name: value for name, value in super().to_json().items() if value is not None}


@dataclass(frozen=True, eq=False)
class Trace:
    """A few chosen classes in the space of their own classifier rows, at every measurement: the arrays of `trace.npz`.

    Attributes:
        epochs: (num_moments,), of the measurements.
        classes: (num_shown,), indices of the chosen classes.
        weights: (num_moments, num_shown, 3), the classifier's rows.
        means: (num_moments, num_shown, 3), the class means.
        samples: (num_moments, num_samples, 3), features of fixed samples.
        sample_labels: (num_samples,), which of the chosen classes each sample has.
    """

    epochs: Integers
    classes: Integers
    weights: Floats
    means: Floats
    samples: Floats
    sample_labels: Integers

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The shapes that the points have by the number of measurements, of classes and of samples."""
        moments, shown, samples = len(self.epochs), len(self.classes), len(self.sample_labels)
        return {"weights": (moments, shown, 3), "means": (moments, shown, 3), "samples": (moments, samples, 3)}


TRACE_POINTS = ("weights", "means", "samples")
"""The arrays of a trace that have points for every measurement."""


@dataclass(frozen=True)
class TraceState:
    """What a checkpoint keeps of a trace that is not finished.

    Attributes:
        epochs: of the measurements so far.
        frames: by name, the points of each measurement, in tensors.
        sample_labels: as `Trace` has them, in a tensor.
    """

    epochs: list[int]
    frames: dict[str, list[Any]]
    sample_labels: Any


@dataclass(frozen=True)
class Failure(Record):
    """Why a run failed, and when."""

    error: Text
    time: MaybeText = None


@dataclass(frozen=True)
class HeadCost(Record):
    """What a training step with one head costs. None stands for what was not measured.

    Attributes:
        head: its name, or that of the paper's own route.
        forward_ms: milliseconds of the forward pass.
        backward_ms: of the backward pass.
        head_forward_ms: of the head and the loss alone.
        head_backward_ms: of the head and the loss alone.
        peak_mb: megabytes that the step adds at the peak.
        steps: of which the median was taken.
        note: what a reader must know.
    """

    MEASURED: ClassVar = ("forward_ms", "backward_ms", "head_forward_ms", "head_backward_ms", "peak_mb")

    head: Text
    forward_ms: Amount
    backward_ms: Amount
    head_forward_ms: Amount
    head_backward_ms: Amount
    peak_mb: Amount
    steps: MaybeWhole
    note: MaybeText


@dataclass(frozen=True, kw_only=True)
class CostRecord(VersionedRecord):
    """The costs of several heads in one experiment: `cost.json`."""

    SAYS = "costs"
    HEADER: ClassVar = {"format": FORMAT, "kind": "cost"}

    experiment: Text
    rows: Annotated[tuple[HeadCost, ...], each(HeadCost)]
    batch_size: MaybeWhole
    precision: MaybeText
    feature_dim: MaybeWhole
    num_classes: MaybeWhole
    versions: Object
    commit: MaybeText
    hardware: Object

    @property
    def conditions(self) -> dict[str, int | str]:
        """What else the costs depend on, by name, as far as it was recorded."""
        found = {name: getattr(self, name) for name in ("batch_size", "feature_dim", "num_classes", "precision")}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class StepCost(Record):
    """What the process that measures one head answers, of which a `HeadCost` is made. None stands for what was not measured."""

    backbone_forward_ms: Amount = None
    head_forward_ms: Amount = None
    head_backward_ms: Amount = None
    backbone_backward_ms: Amount = None
    peak_mb: Number = None
    steps: MaybeWhole = None
    note: MaybeText = None
    feature_dim: MaybeWhole = None
    num_classes: MaybeWhole = None
    hardware: Object = field(default_factory=dict)
    failed: bool = False
    """Whether there is no answer because something went wrong, which the note tells; the process itself does not say so."""


STEP_PARTS = ("backbone_forward_ms", "head_forward_ms", "head_backward_ms", "backbone_backward_ms")
"""The parts of a step, in the order in which they are done."""
