"""What runs leave on disk: the files, and every field of what is written in JSON or as arrays.

This is the one place that names them; whoever writes or reads a record does it through these classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from guided_collapse.experiments.records.fields import (
    Amount,
    AtLeastTwo,
    Channels,
    MaybeNumbers,
    MaybeObject,
    MaybeText,
    MaybeWhole,
    Number,
    Numbers,
    Object,
    Positive,
    PositiveNumber,
    Record,
    RecordError,
    Shape,
    Text,
    Texts,
    VersionedRecord,
    Whole,
    Wholes,
    any_number_of,
    each,
    one,
    or_none,
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
"""Sorted cosine margins, an array for each of `SPLITS`."""
TRACE = "trace.npz"
LAST_CHECKPOINT = "last.ckpt"
PREVIOUS_CHECKPOINT = "previous.ckpt"
MODEL = "model.safetensors"
FAILURE = "failed.json"
COST = "cost.json"
SEARCH = "search.json"
TRIALS = "trials"
"""The folder of the trials of a search, beside its record."""

SEALED = (METRICS, MARGINS, TRACE)
"""Whose checksums a finished model keeps."""
OF_A_RUN = (CONFIG, *SEALED, LAST_CHECKPOINT, PREVIOUS_CHECKPOINT, MODEL)

CHECKSUM = "sha256"
"""The field with the checksum of everything else: in `config.json`, and in the metadata of a model."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")


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
        loss_lower_bound: that no such head with this scale can go below; None without a scale.
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
    protocol_differences: Texts
    num_classes: AtLeastTwo
    feature_dim: Positive
    num_train: Whole
    num_test: Whole
    inputs: MaybeObject = None
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


@dataclass(frozen=True)
class Inputs(Record):
    """What a model must know of the images that it is given.

    Attributes:
        shape: channels, height and width.
        mean: of each channel, with values from 0 to 1.
        std: of each channel.
        class_names: in the order of the logits.
    """

    shape: Shape
    mean: Channels
    std: Channels
    class_names: Texts


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
    """A few chosen classes in the space of their own classifier rows, or in that of features of three dimensions or fewer.

    At every measurement: the arrays of `trace.npz`.

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
class Failure(Record):
    """Why a run failed, when, and where in the code."""

    error: Text
    time: MaybeText = None
    traceback: MaybeText = None


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
class HeadCounts(Record):
    """What one training step asks of a device for the head and the loss, forward and backward, in float32: counted, not timed.

    Attributes:
        head: its name.
        device_kind: "cpu", or "accelerator" for any other device, which it is then made for.
        solver: of the nearest frame; None for a head that solves nothing.
        operations: that compute something.
        waits: how often the host waits for a value.
        double_precision: operations with a float64 tensor.
        factorizations: eigenvalues, singular values, QR, Cholesky and the like.
        work: floating-point operations of matrix products.
        moved_bytes: that operations read and write if nothing is fused.
    """

    COUNTED: ClassVar = ("operations", "waits", "double_precision", "factorizations", "work", "moved_bytes")

    head: Text
    device_kind: Text
    solver: MaybeText
    operations: Whole
    waits: Whole
    double_precision: Whole
    factorizations: Whole
    work: Whole
    moved_bytes: Whole


@dataclass(frozen=True, kw_only=True)
class PeakRates(Record):
    """What a device can do at most.

    Attributes:
        device_name: None for rates that were given as such.
        float32_tflops: float32 operations in a second, in 10^12.
        memory_gbs: bytes from and to its memory in a second, in 10^9.
        source: of the figures.
    """

    device_name: MaybeText = None
    float32_tflops: PositiveNumber
    memory_gbs: PositiveNumber
    source: Text

    def least_ms(self, counts: HeadCounts) -> float:
        """Milliseconds below which the counted work cannot be done: a bound from below, not a measured time."""
        return 1e3 * max(counts.work / (1e12 * self.float32_tflops), counts.moved_bytes / (1e9 * self.memory_gbs))


@dataclass(frozen=True, kw_only=True)
class CostRecord(VersionedRecord):
    """The costs of several heads in one experiment: `cost.json`.

    Attributes:
        experiment: its name.
        rows: time and memory, a row for each head.
        batch_size: samples in a step.
        precision: of what was timed.
        feature_dim: that the heads see.
        num_classes: of the data.
        versions: of what computes, by package.
        commit: of this package; None if it is installed.
        hardware: as `Hardware` has it.
        counts: what a step asks of a device, by head and kind of device; none in records of earlier versions.
        peaks: of the device that was asked about; None if there was none.
    """

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
    counts: Annotated[tuple[HeadCounts, ...], any_number_of(HeadCounts)] = ()
    peaks: Annotated[PeakRates | None, or_none(one(PeakRates))] = None

    def to_json(self) -> dict[str, Any]:
        """As for every record, without counts and peaks where there are none."""
        content = super().to_json()
        return {name: value for name, value in content.items() if name not in ("counts", "peaks") or value}

    @property
    def conditions(self) -> dict[str, int | str]:
        """What else the costs depend on, by name, as far as it was recorded."""
        found = {name: getattr(self, name) for name in ("batch_size", "feature_dim", "num_classes", "precision")}
        return {name: value for name, value in found.items() if value is not None}


def setting_in_words(settings: Mapping[str, Any]) -> str:
    """The values of the searched fields, "learning_rate=0.1,scale=5"; those of the experiment if there are none."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items()) or "as-it-is"


@dataclass(frozen=True)
class Trial(Record):
    """What a setting of a head has come to on the validation images, at the end of training.

    Attributes:
        head: its name.
        settings: values of the searched fields, by name; those without effect on the head are left out.
        seed: of the run.
        measured: by name, as in the record of an epoch; None if the run diverged.
    """

    head: Text
    settings: Object
    seed: Whole
    measured: MaybeNumbers


@dataclass(frozen=True, kw_only=True)
class SearchRecord(VersionedRecord):
    """A search for the settings of heads: `search.json`, written before the first trial, and again before the fresh seeds.

    Attributes:
        experiment: its name.
        configuration: what all runs share, as plain values.
        heads: their names.
        grid: the values of each searched field, by name.
        validation_fraction: of the training images, on which trials are tested.
        trial_epochs: of a trial.
        trial_seeds: each used for every trial.
        seeds: fresh ones, of the runs with the chosen settings.
        rule: by which a setting is chosen, in words.
        planned: when, in the form of ISO 8601.
        trials: those that are done.
        choice: the settings of each head; empty until all trials are done.
        decided: when the choice was made.
    """

    SAYS = "a search"
    HEADER: ClassVar = {"format": FORMAT, "kind": "search"}

    experiment: Text
    configuration: Object
    heads: Texts
    grid: Object
    validation_fraction: PositiveNumber
    trial_epochs: Positive
    trial_seeds: Wholes
    seeds: Wholes
    rule: Text
    planned: Text
    trials: Annotated[tuple[Trial, ...], any_number_of(Trial)] = ()
    choice: Object = field(default_factory=dict)
    decided: MaybeText = None

    @property
    def plan(self) -> dict[str, Any]:
        """What was decided before the first trial."""
        later = ("planned", "trials", "choice", "decided")
        return {name: value for name, value in self.to_json().items() if name not in later}


@dataclass(frozen=True, kw_only=True)
class StepCost(Record):
    """What the process that measures one head answers, of which a `HeadCost` is made. None stands for what was not measured."""

    PARTS: ClassVar = ("backbone_forward_ms", "head_forward_ms", "head_backward_ms", "backbone_backward_ms")
    """In the order in which they are done."""

    backbone_forward_ms: Amount = None
    head_forward_ms: Amount = None
    head_backward_ms: Amount = None
    backbone_backward_ms: Amount = None
    peak_mb: Number = None
    steps: MaybeWhole = None
    note: MaybeText = None
    counts: Annotated[tuple[HeadCounts, ...], any_number_of(HeadCounts)] = ()
    feature_dim: MaybeWhole = None
    num_classes: MaybeWhole = None
    hardware: Object = field(default_factory=dict)
    failed: bool = False
    """Whether there is no answer because something went wrong, which the note tells; the process itself does not say so."""
