"""`Configuration` (what a run computes) and `Placement` (where). Does not import torch, so that the command line starts fast."""

import functools
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from guided_collapse.experiments.backbones import BACKBONES
from guided_collapse.experiments.data import Augmentation
from guided_collapse.experiments.data.known import FEATURE_FILES
from guided_collapse.experiments.errors import RequestError, check_choice
from guided_collapse.experiments.heads import HEADS

# The names of heads are declared in `heads.py`. The command line shows them at run time; to type checkers they are plain strings.
if TYPE_CHECKING:
    HeadName: TypeAlias = str
else:
    HeadName = Literal[tuple(HEADS)]
OptimizerName = Literal["agd", "sgd", "adamw"]
Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
Accelerator = Literal["auto", "cpu", "cuda", "mps"]

LARGEST = 1e9  # far beyond any sensible rate, factor or time
LARGEST_COUNT = 2**31 - 1


def _folder_name(value: str) -> str:
    if not re.fullmatch(r"\w[^/\\]{,149}", value) or not value.isprintable():
        raise ValueError(
            "experiment must be a folder name: at most 150 printable characters without / or \\, starting with a letter or digit; "
            f"got {value!r}. To write somewhere else, use --out."
        )
    return value


def _backbone_name(value: str) -> str:
    family, _, model = value.partition(":")
    if family == "timm" and model:
        return value
    check_choice("backbone", value, (*(name for name in BACKBONES if name != "timm"), "timm:MODEL", "unconstrained"))
    return value


Positive = Annotated[float, Field(gt=0, le=LARGEST)]
NonNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def settings(kind: type[Kind]) -> type[Kind]:
    """Makes a class a frozen dataclass that checks types and ranges; invalid values and unknown fields raise RequestError."""
    checked = pydantic_dataclass(
        frozen=True, config=ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)
    )(kind)
    initialize = checked.__init__

    @functools.wraps(initialize)
    def initialize_checked(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            initialize(self, *arguments, **named)
        except ValidationError as error:
            raise RequestError(validation_message(error)) from None

    checked.__init__ = initialize_checked  # type: ignore[method-assign]
    return checked  # type: ignore[return-value]


# Phrases in pydantic's messages, and the phrases that replace them.
_PLAIN = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
}


def validation_message(error: ValidationError, field: str = "") -> str:
    """Returns the message for a validation error: the requirement, the value received, and what to do.

    Args:
        error: the error raised while checking a dataclass or the value of a single field.
        field: the name of the field, if a single value was checked.
    """
    found = []
    for problem in error.errors(include_url=False):
        name, value, kind = field or ".".join(map(str, problem["loc"])), problem["input"], problem["type"]
        if kind == "value_error":
            found.append(str(problem["ctx"]["error"]))
        elif kind in ("missing", "missing_argument"):
            found.append(f"{name} is required; got nothing. Add it.")
        elif kind in ("unexpected_keyword_argument", "extra_forbidden"):
            found.append(f"{name} is not a known field; got {name}={value!r}. Check the spelling, or leave it out.")
        else:
            message = problem["msg"]
            for theirs, ours in _PLAIN.items():
                message = message.replace(theirs, ours)
            found.append(f"{name} {message}; got {value!r:.200}.")
    return " ".join(found)


DEFAULTS: Mapping[OptimizerName, Mapping[str, Any]] = {
    "agd": {"schedule": "constant", "learning_rate": None, "weight_decay": 0.0},
    "sgd": {"schedule": "cosine", "learning_rate": 0.1, "weight_decay": 5e-4},
    "adamw": {"schedule": "cosine", "learning_rate": 1e-3, "weight_decay": 0.05},
}

HEAD_FIELDS = ("scale", "proximal_weight", "solver", "every", "frame")  # only some heads take these; `HEADS` says which


@settings
class Configuration:
    """What a run computes: the same configuration gives the same result on every machine, up to rounding.

    Values that are out of range, have no effect, or contradict each other raise RequestError.

    Example:
        >>> from guided_collapse.experiments import Configuration
        >>> Configuration("mine", data="digits", backbone="small", head="fixed-etf", epochs=5).head
        'fixed-etf'
    """

    experiment: Annotated[str, AfterValidator(_folder_name)]
    """Name of the experiment and of its folder in --out; by default, the name of the data."""
    data: str
    """Data set, folder with a subfolder of images per class, or feature file."""
    backbone: Annotated[str, AfterValidator(_backbone_name)]
    """Network: small, resnet18, resnet34, resnet50, vgg13, timm:MODEL."""
    head: HeadName = "nearest-etf"
    """Classifier head; `guided-collapse list` describes all."""
    seed: CountOrZero = 0
    """Seed for initial weights, batches and augmentation."""
    epochs: Count = 200
    """Passes over the training data."""
    batch_size: Count = 256
    """Samples per step, over all processes."""
    protocol: Literal["fair", "paper"] = "fair"
    """Batches and centering: fair treats all heads but nn.Linear alike."""
    optimizer: OptimizerName = "agd"
    """Optimizer; agd has no learning rate and allows no biases."""
    gain: Positive = 10.0
    """Step size factor for agd."""
    learning_rate: Positive | None = None
    """Initial learning rate; 0.1 for sgd, 0.001 for adamw."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum for sgd."""
    weight_decay: NonNegative | None = None
    """Weight decay; 0.0005 for sgd, 0.05 for adamw."""
    schedule: Literal["constant", "cosine", "step"] | None = None
    """Learning rate schedule; step divides by 10 at 1/2 and 3/4 of training."""
    scale: Positive = 5.0
    """Scale of the cosines: the norm of the features."""
    proximal_weight: NonNegative = 1e-3
    """Weight of the pull of nearest-etf heads toward the previous frame."""
    solver: Literal["factors", "products"] | None = None
    """Solver of nearest-etf heads; by default, factors on a CPU and products elsewhere."""
    every: Count = 1
    """Steps between updates of the nearest-etf-lagged frame."""
    frame: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Position of anchored rows, from the old class means (0) to the nearest frame (1)."""
    upgrade_of: str | None = None
    """Checksum of the older model that an anchored head takes its rows from; set by `upgrade`."""
    pretrained: bool = False
    """Start from timm's pretrained weights."""
    weights: str | None = None
    """File with a state dict for a timm model to start from."""
    freeze: bool = False
    """Freeze the timm model; train only the layers after it."""
    freeze_batch_norm: bool = False
    """Freeze the timm model's BatchNorm layers."""
    backbone_rate: Positive = 1.0
    """Learning rate of the timm model relative to the layers after it."""
    neck: Literal["none", "linear", "mlp"] = "none"
    """Layers between a timm model or given features and the head."""
    test_features: str | None = None
    """Feature file to test on."""
    width: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Multiplier for the network's channel counts."""
    stem: Literal["imagenet", "cifar"] | None = None
    """First layers of a ResNet: 7x7, stride 2 and max-pool (imagenet), or 3x3 (cifar)."""
    affine: bool = False
    """Affine BatchNorm and biases; not possible with agd."""
    batch_norm: bool = True
    """Use BatchNorm; only the small network can do without it."""
    feature_dim: Count | None = None
    """Dimension of the features that the head receives."""
    num_samples: Count | None = None
    """Number of unconstrained features."""
    num_classes: Annotated[int, Field(ge=2, le=LARGEST_COUNT)] | None = None
    """Number of classes of unconstrained features."""
    image_size: Count | None = None
    """Resize images to this height and width."""
    test_fraction: Fraction = 0.2
    """Fraction of the samples held out if there is no test split."""
    validation_fraction: Fraction | None = None
    """Test on this fraction of the training images instead of the test images."""
    images_per_class: Count | None = None
    """Train on this many images per class."""
    long_tail: Literal["none", "exponential", "step"] = "none"
    """Make the training classes imbalanced: exponentially or in two steps."""
    long_tail_ratio: Annotated[float, Field(ge=1, le=LARGEST)] = 100.0
    """Size of the largest training class divided by that of the smallest."""
    flip: bool = False
    """Flip training images horizontally at random."""
    crop_padding: CountOrZero = 0
    """Shift training images at random by up to this many pixels."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 0.0
    """Rotate training images at random by up to this many degrees."""
    crop_size: Count | None = None
    """Crop images to this size: at random to train, at the center to test."""
    random_resized: bool = False
    """Crop training images at a random size and aspect ratio, as for ImageNet."""
    precision: Precision = "32-true"
    """Precision of the forward and backward passes."""
    measure_every: Count = 5
    """Epochs between measurements."""
    measure_first: CountOrZero = 10
    """Also measure after each of the first N epochs."""
    trace: bool = False
    """Record an animation of the collapse for the report."""

    def __post_init__(self) -> None:
        asked = {name: getattr(self, name) for name in DEFAULTS["agd"]}
        if self.optimizer == "agd" and any(value not in (None, DEFAULTS["agd"][name]) for name, value in asked.items()):
            given = ", ".join(f"{name}={value}" for name, value in asked.items())
            raise ValueError(f"agd has no learning rate, schedule or weight decay; got {given}. Choose --optimizer sgd or adamw.")
        free = (self.data == "unconstrained", self.is_unconstrained, self.num_samples is not None, self.num_classes is not None)
        if any(free) != all(free):
            raise ValueError(
                "unconstrained features need data and backbone `unconstrained`, num_samples and num_classes; images take none; "
                f"got data={self.data!r}, backbone={self.backbone!r}, num_samples={self.num_samples}, "
                f"num_classes={self.num_classes}."
            )
        if self.has_features != (self.backbone == "none"):
            raise ValueError(
                f"backbone must be none for a file of features ({', '.join(FEATURE_FILES)}), and a network for images; "
                f"got data={self.data!r}, backbone={self.backbone!r}."
            )
        if self.optimizer == "agd" and self.has_neck:
            raise ValueError(f"agd needs a network without biases; got backbone {self.backbone}. Choose --optimizer adamw or sgd.")
        if self.pretrained and self.weights is not None:
            raise ValueError(
                f"weights must come either from timm or from a file; got pretrained and weights={self.weights!r}. Leave one out."
            )
        if self.feature_dim is not None and self.neck == "none" and self.has_neck:
            raise ValueError(
                f"feature_dim needs a neck after this backbone; got feature_dim={self.feature_dim} without one. Add --neck linear."
            )
        if (self.freeze or self.has_features) and self.neck == "none" and not HEADS[self.head].learned:
            raise ValueError(
                f"a model must have trainable parameters; got fixed features and head {self.head}, which has none. "
                "Add --neck mlp or linear."
            )
        if (self.head == "anchored") != (self.upgrade_of is not None):
            raise ValueError(
                "head anchored needs upgrade_of, the checksum of an older model, and no other head takes it; "
                f"got head={self.head!r}, upgrade_of={self.upgrade_of!r}. Run: guided-collapse upgrade OLD_RUN"
            )
        self.augmentation  # noqa: B018  checks its values

    @property
    def title(self) -> str:
        """A short title for the run."""
        return f"{self.experiment} {self.head} seed {self.seed}"

    @property
    def is_unconstrained(self) -> bool:
        """True if features are free variables."""
        return self.backbone == "unconstrained"

    @property
    def has_features(self) -> bool:
        """True if the data are a file of features."""
        return self.data.endswith(FEATURE_FILES)

    @property
    def is_timm(self) -> bool:
        """True if the backbone is a timm model."""
        return self.backbone.startswith("timm:")

    @property
    def has_neck(self) -> bool:
        """True if the backbone may end in a neck, whose layers have biases."""
        return self.is_timm or self.has_features

    @property
    def takes_stratified_batches(self) -> bool:
        """True if batches are stratified: always in the fair protocol, and for nearest-etf heads in the paper's protocol."""
        return self.protocol == "fair" or HEADS[self.head].stratified

    @property
    def protocol_differences(self) -> list[str]:
        """How this run may differ from other heads' runs in the same protocol; empty in the fair protocol."""
        if self.protocol == "fair":
            return []
        batches = "stratified" if self.takes_stratified_batches else "shuffled"
        features = "centered" if HEADS[self.head].centers(self.protocol) else "not centered"
        return [
            f"batches are stratified for nearest-etf heads and shuffled for the others; here: {batches}",
            f"features are centered for fixed-etf and nearest-etf heads and not for learned ones; here: {features}",
        ]

    @property
    def augmentation(self) -> Augmentation:
        """The augmentation of training images."""
        return Augmentation(self.flip, self.crop_padding, self.rotation, self.crop_size, self.random_resized)

    def resolved(self) -> "Configuration":
        """Returns the same configuration with the optimizer's defaults filled in."""
        defaults = DEFAULTS[self.optimizer]
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def lengthened(self, epochs: int) -> "Configuration":
        """Returns the same configuration with this number of epochs.

        Raises:
            RequestError: for fewer epochs than before, or for more if the learning rate is not constant.
        """
        if epochs < self.epochs:
            raise RequestError(
                f"epochs must be at least the run's {self.epochs}; got {epochs}. A run can be extended but not shortened."
            )
        if epochs > self.epochs and self.schedule != "constant":
            raise RequestError(
                f"only a run with a constant learning rate can be extended; this one's schedule is {self.schedule} over "
                f"{self.epochs} epochs; got epochs={epochs}. Start a new run with another --out or --experiment."
            )
        return replace(self, epochs=epochs)

    def differences(self, other: "Configuration") -> str:
        """Returns the fields that differ, as text for an error message."""
        ours, theirs = self.to_dict(), other.to_dict()
        return "; ".join(f"{name} is {ours[name]!r}, not {theirs[name]!r}" for name in ours if ours[name] != theirs[name])

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, for JSON."""
        return asdict(self)


@settings
class Placement:
    """Where a run is computed and stored, which does not affect its results."""

    out: Path = Path("runs")
    """Output folder."""
    data_root: Path | None = None
    """Folder of all data sets; $GUIDED_COLLAPSE_DATA or the user's cache."""
    accelerator: Accelerator = "auto"
    """Device type."""
    devices: Count = 1
    """Devices per machine, each with its own process."""
    nodes: Count = 1
    """Machines; a launcher such as torchrun must start the run on each."""
    num_workers: CountOrZero = 2
    """Processes that load images of data sets too large for memory."""
    checkpoint_seconds: NonNegative = 30.0
    """Minimum time between checkpoints."""
    lengthen: bool = False
    """Extend a finished run of the same configuration to --epochs."""
    quiet: bool = False
    """Print lines instead of a progress bar."""
    tensorboard: bool = False
    """Write curves for TensorBoard into the run's folder."""

    @property
    def processes(self) -> int:
        """Number of processes that share a batch."""
        return self.devices * self.nodes
