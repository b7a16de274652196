"""The base class of classifier heads: features on a sphere, centering, per-sample evaluation, and export."""

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

# The probability of the correct class at the lowest possible loss, with the default scale.
BEST_PROBABILITY = 0.9


class Options(TypedDict):
    """Constructor arguments that all heads share."""

    scale: float | None
    check_values: bool | None
    device: Any
    dtype: torch.dtype | None


class Head(nn.Module, ABC):
    r"""Base class of classifier heads: `head(features, labels)` in training mode, `head(features)` in eval mode.

    Heads return logits, (num_samples, num_classes),

    $$
    (f - \bar f) \, W^\top, \qquad f = \tau \, h / \lVert h \rVert
    $$

    for features $h$, (num_samples, feature_dim). In training mode, $\bar f$ is the mean of the batch, with gradient; in eval
    mode, it is a running mean, so the logits of a sample never depend on the rest of its batch. In distributed training,
    statistics are computed over the global batch. Computation is in float32 or wider, even under autocast.

    Heads whose `needs_labels` is False also take `head(features)` in training mode. If the head is inside a model whose forward
    pass takes only inputs, pass labels as in `with head.labels(labels): logits = model(inputs)`.

    Like BatchNorm, a head updates its state in every forward pass in training mode. Therefore, it raises an error inside activation
    checkpointing. It needs batches with several samples of several classes, because centering turns a single sample into zero.
    Features that are all zero have no direction; they stay zero and get no gradient.

    A training step never synchronizes with an accelerator, so by default it does not check values on one: NaN features give NaN
    logits and leave the state unchanged. On a CPU, or with `check_values=True`, NaN features and labels out of range raise an
    error before any state changes.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: tau, the factor that multiplies the cosines. If None, the scale with which the correct class has a probability of 0.9
            at the lowest possible cross-entropy: 4.0 for 10 classes, 6.7 for 100.
        center: whether to subtract the mean of the features.
        check_values: whether to check values in every step; if None, only on a CPU.
        device, dtype: of the weight and the state; the state is in float32 or wider.

    Raises:
        TypeError, ValueError: for arguments of the wrong type or out of range.

    Example:
        >>> import torch
        >>> from guided_collapse import CosineHead, FixedETFHead, Head, NearestETFHead
        >>> features, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> heads: list[Head] = [CosineHead(8, 3), FixedETFHead(8, 3), NearestETFHead(8, 3)]
        >>> [tuple(head(features, labels).shape) for head in heads]
        [(6, 3), (6, 3), (6, 3)]
    """

    needs_labels: bool = True
    """Whether training mode requires labels: True for heads that classify with the class means of the batch."""

    def __init__(self, feature_dim: int, num_classes: int, *, center: bool, **options: Unpack[Options]) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        if feature_dim < 2:
            raise ValueError(
                "feature_dim must be at least 2, because a sphere in one dimension has only two points; "
                f"got feature_dim={feature_dim}. Widen the last layer, or use nn.Linear."
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
        """W, (num_classes, feature_dim), with unit rows."""

    @property
    def bias(self) -> Tensor:
        """-scale W u_G, (num_classes,): the bias in eval mode, where u_G is the running mean."""
        if self.running_mean is None:
            return self.weight.new_zeros(self.num_classes)
        # A copy, because the weight may require gradients and training overwrites the running mean.
        return self.weight @ snapshot(self.running_mean.value).to(self.weight.dtype) * -self.scale

    @property
    def running_mean(self) -> RunningMean | None:
        """The running mean u_G of the directions h/|h|, which does not depend on the scale; None if the head does not center."""
        return self.centering

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Returns the logits of a batch.

        Args:
            features: (num_samples, feature_dim), or (..., feature_dim) for tokens of a text or pixels of an image.
            labels: class indices, (num_samples,) or (...), or soft labels, (..., num_classes): floating-point probabilities that
                sum to 1, as from mixup. Samples with the label -100, the default `ignore_index` of torch's cross-entropy, are left
                out of all means but get logits. Required in training mode if `needs_labels`; ignored in eval mode.

        Returns:
            (num_samples, num_classes) or (..., num_classes), float32 or float64.

        Raises:
            TypeError, ValueError: for an invalid batch; the state is then unchanged.
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
        """Updates the state and returns the logits in training mode, (num_samples, num_classes)."""

    def on_sphere(self, features: Tensor) -> Tensor:
        """Returns the features on the sphere, f = scale h/|h|, (..., feature_dim), in float32 or wider: the input to W."""
        return on_sphere(wide(features), scale=self.scale)

    def embed(self, features: Tensor) -> Tensor:
        """Returns the features on the unit sphere, h/|h|, (..., feature_dim), in float32 or wider: embeddings for an index.

        Embeddings are the same in training and eval mode. Compare them by dot products, which are cosines.

        Raises:
            TypeError, ValueError: for invalid features.
        """
        return self._directions(checked(features, None, self, training=False)[0])

    def _directions(self, features: Tensor) -> Tensor:
        """Returns the result of `embed`, without checking the features."""
        return unit_norm(features)

    def _constant_logits(self, features: Tensor) -> Tensor:
        """Returns the eval-mode logits, (..., num_classes)."""
        # With gradients, a copy of the weight, because training may overwrite it before the backward pass.
        weight = snapshot(self.weight) if torch.is_grad_enabled() else self.weight
        return functional.linear(self.on_sphere(features), weight.to(features.dtype), self.bias.to(features.dtype))

    def _logits(self, batch: Batch, weight: Tensor) -> Tensor:
        """Returns the logits of a training batch for this weight. Updates the running mean if the head centers."""
        if self.centering is not None:
            mean, is_valid = batch.global_mean()
            self.centering.update(mean / self.scale, is_valid)
        return batch.logits(weight, center=self.centering is not None)

    def _checked(self, features: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None, bool]:
        """Returns the validated features and labels of this call, and whether the batch is known to be clean (see `Batch`)."""
        if self.training and self._labels is not None:
            if labels is not None:
                raise ValueError(
                    "labels must be passed only once; got them both in the call and through head.labels(...). "
                    "Remove the with block if the model passes labels to its head."
                )
            labels = self._labels
        features, is_clean = checked(features, labels, self, training=self.training, needs_labels=self.needs_labels)
        single = self.training and self.running_mean is not None and features.numel() == self.feature_dim
        if single and not torch.compiler.is_compiling() and num_processes() == 1:
            warnings.warn(
                "centering turns a training batch of one sample into zero, with zero logits and gradients. "
                "Pass drop_last=True to the DataLoader, or use larger batches.",
                stacklevel=4,
            )
        return features, labels, is_clean

    @contextmanager
    def labels(self, labels: Tensor) -> Iterator[None]:
        """Passes labels to a head inside a model, as a context manager: `with head.labels(labels): logits = model(inputs)`.

        Every call of the head in training mode within the block uses these labels. If blocks are nested, the innermost applies.
        """
        before, self._labels = self._labels, labels
        try:
            yield
        finally:
            self._labels = before

    def update(self, labels: Tensor) -> None:
        """Updates a lagged `NearestETFHead` with the labels of its last batch; any other head raises a RuntimeError."""
        raise RuntimeError(
            "head.update(labels) is for a lagged NearestETFHead, which updates after it classifies; got a "
            f"{type(self).__name__} that is not lagged. Remove the call, or use `with head.labels(labels): logits = model(inputs)`."
        )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Resets parameters and state in place. Call it after `to_empty` for a head built on the meta device."""
        if self.running_mean is not None:
            self.running_mean.reset_parameters()

    @torch.no_grad()
    def export(self, *, embedding: bool = False, rms_norm: bool = True) -> nn.Module:
        """Returns the eval-mode head as stock torch layers, which load and run without this package.

        The layers are an RMSNorm without parameters, which projects onto a sphere of radius sqrt(feature_dim), and a linear layer
        whose weight compensates for the radius.

        Args:
            embedding: whether to export `embed` instead of the logits.
            rms_norm: whether to use `nn.RMSNorm`. `torch.onnx.export(..., dynamo=False)` does not support it; pass False.
        """
        if embedding:
            return exported_unit_norm(self.feature_dim, rms_norm=rms_norm)
        linear = nn.Linear(self.feature_dim, self.num_classes).to(self.weight)
        linear.bias.copy_(self.bias)
        linear.weight.copy_(self.weight * (self.scale / math.sqrt(self.feature_dim)))
        return nn.Sequential(_exported_sphere(self.feature_dim, rms_norm=rms_norm), linear).eval()

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values, for `config.json`, without device, dtype and generator."""
        return {"feature_dim": self.feature_dim, "num_classes": self.num_classes, "scale": self.scale}

    @classmethod
    def from_config(cls, **config: Any) -> Self:
        """Returns a head with the arguments that `config()` returned; load its state dict next."""
        return cls(**config)

    def extra_repr(self) -> str:
        """Returns the arguments that `repr(head)` shows."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())


class FrameHead(SinglePrecisionState, Head):
    """A head without parameters whose weight is a frame: a simplex ETF, or a tight frame for num_classes > feature_dim + 1."""

    frame: Tensor
    """W, (num_classes, feature_dim). Not named `weight`, so that the checkpoint of a linear layer does not load by accident."""

    def __init__(
        self, feature_dim: int, num_classes: int, *, center: bool, direction: Direction, **options: Unpack[Options]
    ) -> None:
        super().__init__(feature_dim, num_classes, center=center, **options)
        self.direction: Direction = direction
        dtype = state_dtype(options["dtype"])
        self.register_buffer("frame", torch.empty(num_classes, feature_dim, device=options["device"], dtype=dtype))

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim), with unit rows."""
        return self.frame

    def _load_from_state_dict(self, *args: Any) -> None:
        # Loading writes in place, and autograd graphs may still hold the old frame.
        for state in self.buffers(recurse=False):
            replace(state, state.clone())
        super()._load_from_state_dict(*args)

    @property
    def is_simplex(self) -> bool:
        """Whether the frame is a simplex ETF rather than a tight frame."""
        return has_simplex_etf(self.feature_dim, self.num_classes)

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""
        return super().config() | {"direction": self.direction}


def unit_norm(features: Tensor) -> Tensor:
    """Returns h/|h|, (..., feature_dim), in float32 or wider; zero stays zero."""
    return on_sphere(wide(features), scale=1.0)


def exported_unit_norm(feature_dim: int, *, rms_norm: bool) -> nn.Module:
    """Returns `unit_norm` as stock torch layers; see `Head.export`."""
    radius = math.sqrt(feature_dim)
    return nn.Sequential(_exported_sphere(feature_dim, rms_norm=rms_norm), symbolic_trace(lambda points: points / radius)).eval()


def _exported_sphere(feature_dim: int, *, rms_norm: bool) -> nn.Module:
    """Returns a stock layer that projects onto the sphere of radius sqrt(feature_dim)."""
    epsilon = SMALLEST_NORM**2 / feature_dim
    if rms_norm:
        return nn.RMSNorm(feature_dim, eps=epsilon, elementwise_affine=False)
    return symbolic_trace(lambda features: features * (features.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt())


def default_scale(feature_dim: int, num_classes: int) -> float:
    """Returns the scale at which the lowest possible cross-entropy is -log(0.9), rounded to three digits.

    For a simplex ETF, the scale is (C-1)/C log(9 (C-1)).
    """
    low, high = 0.0, 1.0
    target = -math.log(BEST_PROBABILITY)
    while tight_frame_cross_entropy_bound(feature_dim, num_classes, high) > target:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        too_low = tight_frame_cross_entropy_bound(feature_dim, num_classes, middle) > target
        low, high = (middle, high) if too_low else (low, middle)
    return float(f"{high:.3g}")
