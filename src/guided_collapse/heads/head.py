"""What all classifier heads share: features on a sphere, centering, evaluation that never looks at the batch, and export."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.nn import functional

from guided_collapse.geometry import tight_frame_cross_entropy_bound
from guided_collapse.geometry.operations import without_autocast
from guided_collapse.geometry.simplex import Direction, check_feature_dim, check_num_classes, has_simplex_etf
from guided_collapse.heads.batch import Batch, flat_labels, num_processes, wide
from guided_collapse.heads.checks import checked
from guided_collapse.heads.class_means import RunningMean
from guided_collapse.heads.sphere import SMALLEST_NORM, on_sphere
from guided_collapse.heads.state import SinglePrecisionState, replace, snapshot, state_dtype

# The default scale is the one whose lowest possible loss gives the right class this probability.
BEST_PROBABILITY = 0.9


class Options(TypedDict):
    """Constructor arguments that all heads share."""

    scale: float | None
    check_values: bool | None
    device: Any
    dtype: torch.dtype | None


class Head(nn.Module, ABC):
    """A classifier head: `head(features, labels)` in training mode and `head(features)` in eval mode return logits.

        logits = (f - f_G) W',      f = scale h/|h|

    The global mean f_G is the batch's in training, with its gradient, and a running mean in evaluation, so the logits of a sample
    never depend on the rest of its batch. Everything is computed in float32 or wider, even under autocast.

    Heads whose `needs_labels` is false take `head(features)` in training mode, too. Inside a model whose forward takes inputs
    alone, labels come by `with head.labels(labels): logits = model(inputs)`.

    Like BatchNorm, a head updates its state in every forward pass in training mode. It therefore refuses activation checkpointing,
    and needs batches with several samples of several classes: centered, a single sample is zero. Features that are all zero have no
    direction: they stay zero and get no gradient.

    A training step never synchronizes with an accelerator, so values are not checked there: NaN features give NaN logits and leave
    the state unchanged. On a CPU, or with `check_values=True`, NaN features and labels out of range raise before anything changes.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: what multiplies the cosines (the paper's tau). None picks the scale whose lowest possible cross-entropy leaves the
            right class a probability of 0.9: 4.0 for 10 classes, 6.7 for 100.
        center: whether to subtract the global mean.
        check_values: whether to check values in every step; None does on a CPU.
        device, dtype: of weight and state; state is never below float32.

    Example:
        >>> import torch
        >>> from guided_collapse import CosineHead, FixedETFHead, Head, NearestETFHead
        >>> features, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> heads: list[Head] = [CosineHead(8, 3), FixedETFHead(8, 3), NearestETFHead(8, 3)]
        >>> [tuple(head(features, labels).shape) for head in heads]
        [(6, 3), (6, 3), (6, 3)]
    """

    needs_labels: bool = True
    """True for heads that classify with the batch's own class means."""

    def __init__(self, feature_dim: int, num_classes: int, *, center: bool, **options: Unpack[Options]) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        if feature_dim < 2:
            raise ValueError(
                "feature_dim must be at least 2 for features on a sphere: in one dimension a sphere is two points, with nothing to "
                f"learn between them; got feature_dim={feature_dim}. Widen the last layer, or use nn.Linear."
            )
        scale = default_scale(feature_dim, num_classes) if options["scale"] is None else options["scale"]
        if isinstance(scale, bool) or not isinstance(scale, (int, float)):
            raise TypeError(f"scale must be a number or None; got {scale!r}.")
        if not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"scale must be positive and finite; got {scale}.")
        self.feature_dim = self.in_features = int(feature_dim)
        self.num_classes = self.out_features = int(num_classes)
        self.scale = float(scale)
        self.check_values = options["check_values"]
        self.centering = RunningMean(feature_dim, device=options["device"], dtype=options["dtype"]) if center else None
        self._labels: Tensor | None = None

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim): unit rows."""

    @property
    def bias(self) -> Tensor:
        """b = -W f_G, (num_classes,), as eval mode adds it."""
        if self.running_mean is None:
            return self.weight.new_zeros(self.num_classes)
        # A copy: the weight may carry a gradient, and training overwrites the running mean.
        return -(self.weight @ snapshot(self.running_mean.value).to(self.weight.dtype))

    @property
    def running_mean(self) -> RunningMean | None:
        """The running global mean f_G; None if the head does not center."""
        return self.centering

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """The logits of a batch.

        Args:
            features: (num_samples, feature_dim), or (..., feature_dim) for the tokens of a text or the pixels of an image.
            labels: class indices, (num_samples,) or (...), or soft labels, (..., num_classes): floating-point shares of the classes
                that sum to 1 in each row, as mixup makes them. Samples with the index -100, the `ignore_index` of torch's
                cross-entropy, are left out of all means and get logits like the others. Required in training mode by heads with
                `needs_labels`; ignored in eval mode.

        Returns:
            (num_samples, num_classes) or (..., num_classes), float32 or float64.

        Raises:
            TypeError, ValueError: for a batch that does not fit; the state is then unchanged.
            RuntimeError: inside activation checkpointing.
        """
        features, labels, is_clean = self._checked(features, labels)
        with without_autocast(features.device):
            features = wide(features)
            if self.training:
                batch = Batch(features.flatten(0, -2), flat_labels(labels, features), scale=self.scale, is_clean=is_clean)
                logits = self._training_logits(batch)
                return logits.reshape(*features.shape[:-1], self.num_classes)
            return self._constant_logits(features)

    @abstractmethod
    def _training_logits(self, batch: Batch) -> Tensor:
        """The logits in training mode, (num_samples, num_classes); also updates the state with the batch."""

    def on_sphere(self, features: Tensor) -> Tensor:
        """What the weight multiplies: f = scale h/|h|, of the features' shape, in float32 or wider."""
        return on_sphere(wide(features), scale=self.scale)

    def embed(self, features: Tensor) -> Tensor:
        """The features on the unit sphere, h/|h|, (..., feature_dim), in float32 or wider: what goes into an index.

        It is the same in training and in eval mode. Compare embeddings by dot products, which are their cosines.

        Raises:
            TypeError, ValueError: for features that do not fit, as in eval mode.
        """
        return self._directions(checked(features, None, self, training=False)[0])

    def _directions(self, features: Tensor) -> Tensor:
        """What `embed` returns."""
        return unit_norm(features)

    def _constant_logits(self, features: Tensor) -> Tensor:
        """The logits of eval mode, which do not depend on the batch, (..., num_classes)."""
        # With gradient a copy of the weight: training may overwrite it before the backward pass.
        weight = snapshot(self.weight) if torch.is_grad_enabled() else self.weight
        return functional.linear(self.on_sphere(features), weight.to(features.dtype), self.bias.to(features.dtype))

    def _logits(self, batch: Batch, weight: Tensor) -> Tensor:
        """The logits of a training batch for this weight; the running mean, if the head centers, takes in that of the batch."""
        if self.centering is not None:
            self.centering.update(*batch.global_mean())
        return batch.logits(weight, center=self.centering is not None)

    def _checked(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None, bool]:
        """The batch of this call, once it is known to fit, and whether it is known to be clean."""
        if self.training and self._labels is not None:
            if labels is not None:
                raise ValueError(
                    "labels must come one way; got them both in the call and by head.labels(...). "
                    "Leave out the block if the model passes labels on to its head."
                )
            labels = self._labels
        features, is_clean = checked(features, labels, self, training=self.training, needs_labels=self.needs_labels)
        single = self.training and self.running_mean is not None and features.numel() == self.feature_dim
        if single and not torch.compiler.is_compiling() and num_processes() == 1:
            warnings.warn(
                "a training batch of one sample is zero once it is centered: its logits and gradients are zero. "
                "Pass drop_last=True to the DataLoader, or use larger batches.",
                stacklevel=4,
            )
        return features, labels, is_clean

    @contextmanager
    def labels(self, labels: Tensor) -> Iterator[None]:
        """Hands labels to a head inside a model: `with head.labels(labels): logits = model(inputs)`.

        Every call of the head in training mode inside the block uses these labels. Blocks may be nested: the innermost counts.
        """
        before, self._labels = self._labels, labels
        try:
            yield
        finally:
            self._labels = before

    def update(self, labels: Tensor) -> None:
        """Takes in the batch that a lagged `NearestETFHead` has classified without labels; a RuntimeError for any other head."""
        raise RuntimeError(
            "head.update(labels) is for a lagged NearestETFHead, which takes in a batch after classifying it; got a "
            f"{type(self).__name__} that is not lagged. Remove the call, or use `with head.labels(labels): logits = model(inputs)`."
        )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Starts over, in place; call it after `to_empty` for a head built on the meta device. Draws from the generator, if any."""
        if self.running_mean is not None:
            self.running_mean.reset_parameters()

    @torch.no_grad()
    def export(self, *, embedding: bool = False, rms_norm: bool = True) -> nn.Module:
        """The eval-mode logits as stock torch layers, which need this package neither to load nor to run.

        An RMSNorm without parameters, which projects onto a sphere of radius sqrt(feature_dim), and a linear layer whose weight
        makes up for the radius.

        Args:
            embedding: True exports `embed` instead of the logits.
            rms_norm: False replaces `nn.RMSNorm` by plain operations, for `torch.onnx.export(..., dynamo=False)`, which does not
                know the layer.
        """
        if embedding:
            return exported_unit_norm(self.feature_dim, rms_norm=rms_norm)
        linear = nn.Linear(self.feature_dim, self.num_classes).to(self.weight)
        linear.bias.copy_(self.bias)
        linear.weight.copy_(self.weight * (self.scale / math.sqrt(self.feature_dim)))
        return nn.Sequential(_exported_sphere(self.feature_dim, rms_norm=rms_norm), linear).eval()

    def config(self) -> dict[str, Any]:
        """The constructor's arguments as plain values, for `config.json`; device, dtype and generator are not part of it."""
        return {"feature_dim": self.feature_dim, "num_classes": self.num_classes, "scale": self.scale}

    @classmethod
    def from_config(cls, **config: Any) -> Self:
        """A head with the arguments that `config()` returned, for a state dict to fill."""
        return cls(**config)

    def extra_repr(self) -> str:
        """The part of `repr(head)` beside the submodules."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())


class FrameHead(SinglePrecisionState, Head):
    """A head without parameters whose weight is a frame: a simplex ETF, or a tight frame for num_classes > feature_dim + 1."""

    frame: Tensor
    """W, (num_classes, feature_dim). Not called `weight`, so that the checkpoint of a linear layer does not fit by accident."""

    def __init__(
        self, feature_dim: int, num_classes: int, *, center: bool, direction: Direction, **options: Unpack[Options]
    ) -> None:
        super().__init__(feature_dim, num_classes, center=center, **options)
        self.direction: Direction = direction
        dtype = state_dtype(options["dtype"])
        self.register_buffer("frame", torch.empty(num_classes, feature_dim, device=options["device"], dtype=dtype))

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim): unit rows."""
        return self.frame

    def _load_from_state_dict(self, *args: Any) -> None:
        # Loading writes in place, and graphs may still hold what the frame was.
        for state in self.buffers(recurse=False):
            replace(state, state.clone())
        super()._load_from_state_dict(*args)

    @property
    def is_simplex(self) -> bool:
        """Whether the frame is a simplex ETF rather than a tight frame."""
        return has_simplex_etf(self.feature_dim, self.num_classes)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments as plain values."""
        return super().config() | {"direction": self.direction}


def unit_norm(features: Tensor) -> Tensor:
    """h/|h|, (..., feature_dim), in float32 or wider; zero stays zero."""
    return on_sphere(wide(features), scale=1.0)


def exported_unit_norm(feature_dim: int, *, rms_norm: bool) -> nn.Module:
    """`unit_norm` as stock torch layers; see `Head.export`."""
    radius = math.sqrt(feature_dim)
    return nn.Sequential(_exported_sphere(feature_dim, rms_norm=rms_norm), symbolic_trace(lambda points: points / radius)).eval()


def _exported_sphere(feature_dim: int, *, rms_norm: bool) -> nn.Module:
    """A layer that projects onto the sphere of radius sqrt(feature_dim)."""
    epsilon = SMALLEST_NORM**2 / feature_dim
    if rms_norm:
        return nn.RMSNorm(feature_dim, eps=epsilon, elementwise_affine=False)
    return symbolic_trace(lambda features: features * (features.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt())


def default_scale(feature_dim: int, num_classes: int) -> float:
    """The scale whose lowest possible cross-entropy is -log(0.9), to three digits; (C-1)/C log(9 (C-1)) for a simplex ETF."""
    low, high = 0.0, 1.0
    target = -math.log(BEST_PROBABILITY)
    while tight_frame_cross_entropy_bound(feature_dim, num_classes, high) > target:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        too_low = tight_frame_cross_entropy_bound(feature_dim, num_classes, middle) > target
        low, high = (middle, high) if too_low else (low, middle)
    return float(f"{high:.3g}")
