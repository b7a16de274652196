"""Everything that determines the result of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from guided_collapse.backbones.declared import BACKBONES
from guided_collapse.data.augmentation import Augmentation
from guided_collapse.records.heads import HEADS
from guided_collapse.training.settings.ranges import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_COUNT,
    SMALLEST_NUMBER,
    Range,
    at_least,
    check_ranges,
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
LongTail = Literal["none", "exponential", "step"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]


# What a learning rate and the rest are when they are not given, by optimiser.
DEFAULTS: Mapping[OptimiserName, Mapping[str, Any]] = {
    "agd": {"schedule": "constant", "learning_rate": None, "weight_decay": 0.0},
    "sgd": {"schedule": "cosine", "learning_rate": 0.1, "weight_decay": 5e-4},
    "adamw": {"schedule": "cosine", "learning_rate": 1e-3, "weight_decay": 0.05},
}


@dataclass(frozen=True)
class Configuration:
    """One run, but for the machine it runs on: the same configuration gives the same result.

    Raises:
        ValueError: for values that are out of range, do nothing, or contradict each other.
    """

    experiment: str
    """Name of the experiment, and of the folder of its runs."""
    data: str
    """A data set by name, a folder with a folder of images for each class, or `unconstrained` for free features."""
    backbone: BackboneName
    """The network that makes features."""
    head: HeadName = "implicit"
    """The classifier."""
    seed: int = 0
    """Source of everything random: initial weights, batches, augmentation."""
    epochs: int = 200
    """How often every sample is seen."""
    batch_size: int = 256
    """Samples in a step, over all processes together."""
    protocol: Protocol = "fair"
    """fair: every head gets the same stratified batches and the same centring; paper: as in the paper."""
    optimiser: OptimiserName = "agd"
    """agd has no learning rate and takes no biases."""
    gain: float = 10.0
    """Factor on the steps of agd."""
    learning_rate: float | None = None
    """At the start; None is 0.1 for sgd and 0.001 for adamw."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float | None = None
    """None is 0.0005 for sgd and 0.05 for adamw."""
    schedule: Schedule | None = None
    """How the learning rate falls: cosine to 0, or step: to a tenth after half and again after three quarters. None is cosine."""
    temperature: float = 5.0
    """Norm of the features."""
    proximal_weight: float = 1e-3
    """Pull of the implicit heads towards the frame of the step before."""
    width: float | None = None
    """Factor on the channels of the network."""
    stem: Literal["imagenet", "cifar"] | None = None
    """First layers of a ResNet: 7x7 with stride 2 and a max-pool, or 3x3."""
    affine: bool = False
    """Whether BatchNorm learns scale and shift and layers have biases; agd takes no such network."""
    batch_norm: bool = True
    """Whether the network has BatchNorm; only the small one can do without."""
    feature_dim: int | None = None
    """Features of the small network or of unconstrained features."""
    num_samples: int | None = None
    """Of unconstrained features."""
    num_classes: int | None = None
    """Of unconstrained features."""
    image_size: int | None = None
    """Height and width of images; None keeps those of a named data set, and takes those of most images of a folder, up to 256."""
    test_fraction: float = 0.2
    """Share of a folder that is held out, if it has no folder of test images."""
    images_per_class: int | None = None
    """Train on so many images of each class, the same in every run; None takes all. Test images stay as they are."""
    long_tail: LongTail = "none"
    """Thin out the training classes, exponentially or in two steps."""
    long_tail_ratio: float = 100.0
    """Samples of the most frequent class for one of the least frequent."""
    flip: bool = False
    """Mirror training images at random."""
    crop_padding: int = 0
    """Shift training images at random by up to so many pixels."""
    rotation: float = 0.0
    """Turn training images at random by up to so many degrees."""
    crop_size: int | None = None
    """Crop training images at random, test images at the centre, to this height and width."""
    random_resized: bool = False
    """Crop training images with a random size and shape, as is usual for ImageNet."""
    precision: Precision = "32-true"
    """Of the forward and backward pass."""
    measure_every: int = 5
    """Measure after so many epochs, and always after the first ten and the last."""
    trace: bool = False
    """Keep what the animation of the report shows: a few classes, projected, at every measurement."""

    def __post_init__(self) -> None:
        for name, legal in _CHOICES.items():
            check_choice(name, getattr(self, name), legal)
        check_ranges(self, _RANGES)
        _check_folder_name(self.experiment)
        if self.optimiser == "agd" and (self.learning_rate, self.weight_decay or 0.0, self.schedule or "constant") != (
            None,
            0.0,
            "constant",
        ):
            raise ValueError(
                "agd has no learning rate, schedule or weight decay; choose --optimiser sgd or adamw, or leave them out."
            )
        sizes = (self.num_samples, self.num_classes)
        fits = None not in sizes if self.is_unconstrained else sizes == (None, None)
        if self.is_unconstrained != (self.data == "unconstrained") or not fits:
            raise ValueError(
                "unconstrained features need data and backbone `unconstrained`, num_samples and num_classes; images need neither; "
                f"got data={self.data!r}, backbone={self.backbone!r}, num_samples={sizes[0]}, num_classes={sizes[1]}."
            )
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
    def augmentation(self) -> Augmentation:
        """The random changes of training images."""
        return Augmentation(self.flip, self.crop_padding, self.rotation, self.crop_size, self.random_resized)

    def resolved(self) -> "Configuration":
        """The same with the optimiser's defaults written out."""
        defaults = DEFAULTS[self.optimiser]
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def lengthened(self, epochs: int) -> "Configuration":
        """The same with at least as many epochs, the first of which are those of this one.

        Raises:
            ValueError: for fewer epochs, or a learning rate that falls with the number of epochs.
        """
        if epochs < self.epochs:
            raise ValueError(f"a run can be made longer, not shorter: it has {self.epochs} epochs; got {epochs}.")
        if epochs > self.epochs and self.schedule != "constant":
            raise ValueError(
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
            ValueError: for names that are not fields, fields that are missing, or values of another type or out of range.
        """
        kinds = get_type_hints(cls)
        unknown = set(values) - set(kinds)
        if unknown:
            raise ValueError(f"the configuration has fields unknown to this version: {', '.join(sorted(unknown))}.")
        missing = [field.name for field in fields(cls) if field.default is MISSING and field.name not in values]
        if missing:
            raise ValueError(f"the configuration must have the fields {', '.join(missing)}; they are missing.")
        for name, value in values.items():
            _check_type(name, value, kinds[name])
        return cls(**values)


def _check_type(name: str, value: object, kind: Any) -> None:
    """Refuses a value that is not of the type of its field; a whole number is a float too, and a bool is no number."""
    optional = get_origin(kind) in (Union, UnionType)
    if optional and value is None:
        return
    (kind,) = set(get_args(kind)) - {NoneType} if optional else {kind}
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
    elif type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{name} must be {_TYPE_NAMES[kind]}{' or null' if optional else ''}; got {value!r}.")


_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def check_choice(name: str, value: object, legal: Sequence[object]) -> None:
    """Refuses what is not among the legal values, with the nearest ones and all of them."""
    if value in legal:
        return
    near = get_close_matches(str(value), [str(choice) for choice in legal], n=2)
    guess = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(str(choice) for choice in legal)}; got {value!r}.{guess}")


_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "head": tuple(HEADS),
    "backbone": (*BACKBONES, "unconstrained"),
    "optimiser": get_args(OptimiserName),
    "schedule": (*get_args(Schedule), None),
    "protocol": get_args(Protocol),
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
    "temperature": POSITIVE,
    "proximal_weight": NOT_NEGATIVE,
    "width": Range("positive and at most 1000", SMALLEST_NUMBER, 1000.0),
    "feature_dim": POSITIVE_COUNT,
    "num_samples": POSITIVE_COUNT,
    "num_classes": at_least(2),
    "image_size": POSITIVE_COUNT,
    "test_fraction": Range("between 0 and 1", SMALLEST_NUMBER, math.nextafter(1.0, 0.0)),
    "images_per_class": POSITIVE_COUNT,
    "long_tail_ratio": Range("at least 1", 1.0),
    "crop_padding": COUNT,
    "rotation": Range("from 0 to 180 degrees", 0.0, 180.0),
    "crop_size": POSITIVE_COUNT,
    "measure_every": POSITIVE_COUNT,
}

LONGEST_NAME = 200  # bytes; file systems take 255, and files beside it have longer names


def _check_folder_name(name: str) -> None:
    """Refuses names of experiments that cannot be, or had better not be, those of a folder."""
    hidden_or_spaced = name.startswith(".") or name != name.strip()
    if not name or hidden_or_spaced or not name.isprintable() or set(name) & set("/\\") or len(name.encode()) > LONGEST_NAME:
        shown = name if len(name) <= LONGEST_NAME else f"{name[:20]}... of {len(name.encode(errors='replace'))} bytes"
        raise ValueError(
            "experiment must be the name of a folder: not empty, without / and \\, not beginning with a dot or a space, printable, "
            f"and at most {LONGEST_NAME} bytes; got {shown!r}. For another place, give --out."
        )
