"""Everything that determines the result of a run."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_type_hints

from guided_collapse.experiments.errors import RequestError
from guided_collapse.experiments.backbones.declared import BACKBONES
from guided_collapse.experiments.data.augmentation import Augmentation
from guided_collapse.experiments.records.declared.heads import HEADS
from guided_collapse.experiments.training.settings.checks import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_COUNT,
    SMALLEST_NUMBER,
    Range,
    at_least,
    check_choice,
    check_folder_name,
    check_ranges,
    check_type,
)

# Of what is declared: type checkers need not know the names, and the command line shows them.
if TYPE_CHECKING:
    HeadName: TypeAlias = str
    BackboneName: TypeAlias = str
else:
    HeadName = Literal[tuple(HEADS)]
    BackboneName = Literal[(*BACKBONES, "unconstrained")]
OptimiserName = Literal["agd", "sgd", "adamw"]
Schedule = Literal["constant", "cosine", "step"]
Protocol = Literal["fair", "paper"]
SolverName = Literal["factors", "products"]
LongTail = Literal["none", "exponential", "step"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


# What a learning rate and the rest are when they are not given, by optimizer.
DEFAULTS: Mapping[OptimiserName, Mapping[str, Any]] = {
    "agd": {"schedule": "constant", "learning_rate": None, "weight_decay": 0.0},
    "sgd": {"schedule": "cosine", "learning_rate": 0.1, "weight_decay": 5e-4},
    "adamw": {"schedule": "cosine", "learning_rate": 1e-3, "weight_decay": 0.05},
}


HEAD_FIELDS = ("scale", "proximal_weight", "solver", "every")
"""The fields that heads may take; which one takes which is declared with them."""


@dataclass(frozen=True)
class Configuration:
    """What a run computes: the same configuration gives the same result on every machine, up to rounding.

    Raises:
        RequestError: for values that are out of range, do nothing, or contradict each other.

    Example:
        >>> from guided_collapse.experiments import Configuration
        >>> Configuration("mine", data="digits", backbone="small", head="fixed-etf", epochs=5).head
        'fixed-etf'
    """

    experiment: str
    """Name of the experiment; its runs go into a folder of this name."""
    data: str
    """Name of a data set, or a folder of images with one subfolder per class, or `unconstrained`."""
    backbone: BackboneName
    """Network that computes the features; `unconstrained` makes them free variables."""
    head: HeadName = "nearest-etf"
    """Classifier head."""
    seed: int = 0
    """Seed for initial weights, batches and augmentation."""
    epochs: int = 200
    """Number of passes over the training data."""
    batch_size: int = 256
    """Samples per step, summed over all processes."""
    protocol: Protocol = "fair"
    """fair: all heads get stratified batches, and all but nn.Linear centered features; paper: as in the paper."""
    optimizer: OptimiserName = "agd"
    """Optimizer; agd needs no learning rate, and a network without biases."""
    gain: float = 10.0
    """Step size factor of agd."""
    learning_rate: float | None = None
    """Initial learning rate; by default 0.1 for sgd and 0.001 for adamw."""
    momentum: float = 0.9
    """Momentum of sgd."""
    weight_decay: float | None = None
    """Weight decay; by default 0.0005 for sgd and 0.05 for adamw."""
    schedule: Schedule | None = None
    """Learning rate over time; step divides it by 10 after 1/2 and 3/4 of all steps. By default cosine, with agd constant."""
    scale: float = 5.0
    """Norm that the features are scaled to."""
    proximal_weight: float = 1e-3
    """How strongly the implicit heads are held near the frame of the previous step."""
    solver: SolverName | None = None
    """How the implicit heads find their frame; by default by factors on a CPU, elsewhere by matrix products alone."""
    every: int = 1
    """Steps between moves of the lagged head's frame."""
    width: float | None = None
    """Factor on the number of channels of the network."""
    stem: Literal["imagenet", "cifar"] | None = None
    """First layers of a ResNet: imagenet is a 7x7 convolution with stride 2 and a max-pool, cifar a 3x3 convolution."""
    affine: bool = False
    """Use BatchNorm with learned scale and shift, and layers with biases; not possible with agd."""
    batch_norm: bool = True
    """Use BatchNorm; only the small network can do without it."""
    feature_dim: int | None = None
    """Number of features of the small network, of unconstrained features, or of a linear layer at the end of a ResNet."""
    num_samples: int | None = None
    """Number of samples, for unconstrained features only."""
    num_classes: int | None = None
    """Number of classes, for unconstrained features only."""
    image_size: int | None = None
    """Resize images to this height and width; by default that of the named data set, or of most images in the folder, up to 256."""
    test_fraction: float = 0.2
    """Fraction of the images held out for testing, if the folder has no test images of its own."""
    validation_fraction: float | None = None
    """Set aside this fraction of the training images of each class and test on them, without a look at the test images."""
    images_per_class: int | None = None
    """Train on this many images of each class, the same in every run; by default all. Test images stay as they are."""
    long_tail: LongTail = "none"
    """Make the training classes unbalanced: exponentially, or in two steps."""
    long_tail_ratio: float = 100.0
    """Size of the largest training class divided by that of the smallest."""
    flip: bool = False
    """Mirror training images at random."""
    crop_padding: int = 0
    """Shift training images at random by up to this many pixels."""
    rotation: float = 0.0
    """Rotate training images at random by up to this many degrees."""
    crop_size: int | None = None
    """Crop training images at random, and test images at the center, to this height and width."""
    random_resized: bool = False
    """Crop training images at a random size and aspect ratio, as is usual for ImageNet."""
    precision: Precision = "32-true"
    """Precision of the forward and backward pass."""
    measure_every: int = 5
    """Measure every so many epochs, and always after the first ones and the last."""
    measure_first: int = 10
    """Measure after each of so many first epochs."""
    trace: bool = False
    """Record the animation of the collapse for the report."""

    def __post_init__(self) -> None:
        for name, legal in _CHOICES.items():
            check_choice(name, getattr(self, name), legal)
        check_ranges(self, _RANGES)
        check_folder_name("experiment", self.experiment)
        _check_optimizer(self)
        _check_unconstrained(self)
        self.augmentation  # noqa: B018  its values are checked where it is made

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.experiment} {self.head} seed {self.seed}"

    @property
    def is_unconstrained(self) -> bool:
        """Whether features are free variables."""
        return self.backbone == "unconstrained"

    @property
    def takes_stratified_batches(self) -> bool:
        """Whether every batch has every class in proportion: in the fair protocol always, in the paper's for implicit heads."""
        return self.protocol == "fair" or HEADS[self.head].stratified

    @property
    def protocol_differences(self) -> list[str]:
        """How this run differs from other heads' runs of the same protocol, in words; not at all in the fair protocol."""
        if self.protocol == "fair":
            return []
        return [
            "batches are stratified for implicit heads and shuffled for the others; here: "
            + ("stratified" if self.takes_stratified_batches else "shuffled"),
            "features are centered for fixed and implicit heads and not for learned ones; here: "
            + ("centered" if HEADS[self.head].centers(self.protocol) else "not centered"),
        ]

    @property
    def augmentation(self) -> Augmentation:
        """The random changes of training images."""
        return Augmentation(self.flip, self.crop_padding, self.rotation, self.crop_size, self.random_resized)

    def resolved(self) -> "Configuration":
        """The same with the optimizer's defaults written out."""
        defaults = DEFAULTS[self.optimizer]
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def lengthened(self, epochs: int) -> "Configuration":
        """The same with at least as many epochs, the first of which are those of this one.

        Raises:
            RequestError: for fewer epochs, or a learning rate that falls with the number of epochs.
        """
        if epochs < self.epochs:
            raise RequestError(f"a run can be made longer, not shorter: it has {self.epochs} epochs; got {epochs}.")
        if epochs > self.epochs and self.schedule != "constant":
            raise RequestError(
                f"only a run with a constant learning rate can be made longer, and this one's schedule is {self.schedule} over "
                f"{self.epochs} epochs; got {epochs}. Start a new one with another --out or --experiment."
            )
        return replace(self, epochs=epochs)

    def becomes(self, other: "Configuration") -> bool:
        """Whether the other is this one, or this one made longer."""
        try:
            return self.lengthened(other.epochs) == other
        except ValueError:
            return False

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Configuration":
        """The configuration of these values; those of a later version that this one does not know are refused.

        Raises:
            RequestError: for names that are not fields, fields that are missing, or values of another type or out of range.
        """
        kinds = get_type_hints(cls)
        unknown = set(values) - set(kinds)
        if unknown:
            raise RequestError(f"the configuration has fields unknown to this version: {', '.join(sorted(unknown))}.")
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]
        if missing:
            raise RequestError(f"the configuration must have the fields {', '.join(missing)}; they are missing.")
        for name, value in values.items():
            check_type(name, value, kinds[name])
        return cls(**values)


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "head": tuple(HEADS),
    "backbone": (*BACKBONES, "unconstrained"),
    "optimizer": get_args(OptimiserName),
    "schedule": (*get_args(Schedule), None),
    "protocol": get_args(Protocol),
    "solver": (*get_args(SolverName), None),
    "long_tail": get_args(LongTail),
    "precision": get_args(Precision),
}

_RANGES: Mapping[str, Range] = {
    "seed": Range("from 0 to 2^31 - 1", 0, 2**31 - 1, whole=True),
    "epochs": POSITIVE_COUNT,
    "batch_size": POSITIVE_COUNT,
    "gain": POSITIVE,
    "learning_rate": POSITIVE,
    "momentum": Range("from 0 to less than 1", 0.0, math.nextafter(1.0, 0.0)),
    "weight_decay": NOT_NEGATIVE,
    "scale": POSITIVE,
    "proximal_weight": NOT_NEGATIVE,
    "every": POSITIVE_COUNT,
    "width": Range("positive and at most 1000", SMALLEST_NUMBER, 1000.0),
    "feature_dim": POSITIVE_COUNT,
    "num_samples": POSITIVE_COUNT,
    "num_classes": at_least(2),
    "image_size": POSITIVE_COUNT,
    "test_fraction": Range("between 0 and 1", SMALLEST_NUMBER, math.nextafter(1.0, 0.0)),
    "validation_fraction": Range("between 0 and 1", SMALLEST_NUMBER, math.nextafter(1.0, 0.0)),
    "images_per_class": POSITIVE_COUNT,
    "long_tail_ratio": Range("at least 1", 1.0),
    "crop_padding": COUNT,
    "rotation": Range("from 0 to 180 degrees", 0.0, 180.0),
    "crop_size": POSITIVE_COUNT,
    "measure_every": POSITIVE_COUNT,
    "measure_first": COUNT,
}


def _check_optimizer(configuration: Configuration) -> None:
    """Refuses what agd has no use for."""
    if configuration.optimizer != "agd":
        return
    has_rate = configuration.learning_rate is not None
    has_decay = configuration.weight_decay not in (None, 0.0)
    has_schedule = configuration.schedule not in (None, "constant")
    if has_rate or has_decay or has_schedule:
        raise RequestError(
            "agd has no learning rate, schedule or weight decay; choose --optimizer sgd or adamw, or leave them out."
        )


def _check_unconstrained(configuration: Configuration) -> None:
    """Refuses sizes of unconstrained features for images, and unconstrained features without them."""
    given = [size is not None for size in (configuration.num_samples, configuration.num_classes)]
    if configuration.is_unconstrained:
        fits = configuration.data == "unconstrained" and all(given)
    else:
        fits = configuration.data != "unconstrained" and not any(given)
    if not fits:
        raise RequestError(
            "unconstrained features need data and backbone `unconstrained`, num_samples and num_classes; images need neither; "
            f"got data={configuration.data!r}, backbone={configuration.backbone!r}, num_samples={configuration.num_samples}, "
            f"num_classes={configuration.num_classes}."
        )
