"""What all classifier heads share: features on a sphere, centering, evaluation that never looks at the batch, and export."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace
from torch.nn import functional

from guided_collapse.geometry.simplex import check_feature_dim, check_num_classes
from guided_collapse.geometry.operations import without_autocast
from guided_collapse.heads.means.batch import batch_mean, check_shapes, checked_values, looks_at_values
from guided_collapse.heads.means.running_means import RunningMean
from guided_collapse.heads.means.targets import flat_labels
from guided_collapse.heads.snapshot import snapshot

SMALLEST_NORM = 1e-12


class Head(nn.Module, ABC):
    """A classifier head: `head(features, labels)` in training mode and `head(features)` in eval mode give logits.

    Heads that do not follow class means, or follow them later, which `needs_labels` says, take `head(features)` in training mode
    too. Inside a model whose forward takes inputs alone, labels come by `with head.labels(labels): logits = model(inputs)`.

    logits = (f - f_G) W' with f = scale h/|h|. The global mean f_G is the batch's in training, with its gradient, and a
    running mean in evaluation, so the logits of a sample never depend on the others in its batch. Everything is computed in
    float32 or wider, whatever autocast says, and state stays in float32 when a model is turned to half precision.

    Every forward pass in training mode takes in its batch, as with BatchNorm. So the head refuses activation checkpointing, which
    would run it twice. Give it batches of several classes: a batch of one class or one sample, once centered, is zero and teaches
    nothing. Features that are all zero have no direction: they stay zero, and get no gradient.

    A step never waits for a device, so on an accelerator values are not looked at: NaN features give NaN logits and leave the state
    as it was, and labels out of range fail as they do everywhere in torch. On a CPU, and with `check_values=True`, both are refused
    in words before anything changes.

    Example:
        >>> import torch
        >>> from guided_collapse import FixedETFHead, Head, CosineHead, NearestETFHead
        >>> features, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> heads: list[Head] = [FixedETFHead(8, 3), CosineHead(8, 3), NearestETFHead(8, 3)]
        >>> [tuple(head(features, labels).shape) for head in heads]
        [(6, 3), (6, 3), (6, 3)]
    """

    needs_labels: bool = True
    """Whether training mode must have labels: those heads must that classify with the batch's own class means."""

    scale: float | None
    """tau, the norm of the features on their sphere; None leaves them as they are."""

    def __init__(self, feature_dim: int, num_classes: int, *, scale: float | None, center: bool, check_values: bool | None) -> None:
        super().__init__()
        check_num_classes(num_classes)
        check_feature_dim(feature_dim)
        if scale is not None and not (scale > 0 and math.isfinite(scale)):
            raise ValueError(f"scale must be a positive, finite number; got {scale}.")
        if scale is not None and feature_dim < 2:
            raise ValueError(
                "feature_dim must be at least 2 for features on a sphere: in one dimension it is two points, with nothing to learn "
                f"between them; got feature_dim={feature_dim}. Widen the last layer, or use nn.Linear."
            )
        self.feature_dim = int(feature_dim)
        self.num_classes = int(num_classes)
        self.scale = scale
        self.check_values = check_values
        self._labels_handed_over: Tensor | None = None
        self.centering = RunningMean(feature_dim) if center else None

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim): what eval mode multiplies the features on their sphere with."""

    @property
    def running_mean(self) -> RunningMean | None:
        """The running global mean f_G; None if the head does not center."""
        return self.centering

    @property
    def bias(self) -> Tensor:
        """b = -W f_G, (num_classes,): what eval mode adds."""
        return self._centering_bias()

    def _centering_bias(self) -> Tensor:
        if self.running_mean is None:
            return self.weight.new_zeros(self.num_classes)
        # A copy, because the weight may have a gradient, and training writes to the running mean.
        return -(self.weight @ snapshot(self.running_mean.value).to(self.weight.dtype))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Begins anew, in place: what a head that was made on the meta device needs after `to_empty`.

        Args:
            generator: source of what is random; None takes torch's global generator.
        """
        if self.running_mean is not None:
            self.running_mean.reset_parameters()

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """The logits of a batch.

        Args:
            features: (num_samples, feature_dim), or (..., feature_dim): the tokens of a text, the pixels of an image.
            labels: (num_samples,) or (...), class indices, or (num_samples, num_classes) or (..., num_classes), soft: shares of the
                classes, floating-point, none negative, that sum to 1 in each row, as mixup makes them. They weigh a sample in the
                means of its classes; one-hot labels say what indices do. Samples with the index -100, which torch's
                cross-entropy leaves out too, are left out of all means, and get logits as the others do. Labels are required in
                training mode by a head with `needs_labels`, here or by `labels`, and not looked at in eval mode.

        Returns:
            (num_samples, num_classes) or (..., num_classes), float32 or float64.

        Raises:
            ValueError: for a batch that does not fit; the state is then as it was.
            RuntimeError: inside activation checkpointing.
        """
        labels = self._labels_of_this_call(labels)
        check_shapes(
            features,
            labels,
            feature_dim=self.feature_dim,
            num_classes=self.num_classes,
            training=self.training,
            needs_labels=self.needs_labels,
        )
        state = torch.float64 if self.running_mean is None or self.scale is not None else self.running_mean.value.dtype
        batch_labels = labels if self.training else None
        features = checked_values(
            features, batch_labels, self.num_classes, training=self.training, state=state, check_values=self.check_values
        )
        with without_autocast(features.device):
            points = self.on_sphere(features)
            if self.training:
                known = torch.zeros(0, dtype=torch.int64, device=points.device) if labels is None else labels
                logits = self._training_logits(points.flatten(0, -2), flat_labels(known, points.dtype))
                return logits.reshape(*points.shape[:-1], self.num_classes)
            # With gradient a copy of the weight: training may write to it before the backward pass.
            weight = snapshot(self.weight) if torch.is_grad_enabled() else self.weight
            return functional.linear(points, weight.to(points.dtype), self.bias.to(points.dtype))

    @contextmanager
    def labels(self, labels: Tensor) -> Iterator[None]:
        """Hands labels over to a head inside a model: `with head.labels(labels): logits = model(inputs)`.

        Every call of the head in training mode inside the block takes these labels. Blocks may be nested: the innermost counts.

        Args:
            labels: as `forward` takes them; looked at when the head is called.
        """
        before, self._labels_handed_over = self._labels_handed_over, labels
        try:
            yield
        finally:
            self._labels_handed_over = before

    def _labels_of_this_call(self, labels: Tensor | None) -> Tensor | None:
        """The labels that a call was given, or else those that were handed over."""
        if not self.training or self._labels_handed_over is None:
            return labels
        if labels is not None:
            raise ValueError(
                "labels must come one way; got them both in the call and by head.labels(...). "
                "Leave out the block for a model that passes labels on to its head."
            )
        return self._labels_handed_over

    def update(self, labels: Tensor) -> None:
        """Takes in the batch that the last forward pass in training mode has classified without labels; a lagged head alone does.

        Args:
            labels: as `forward` takes them.

        Raises:
            RuntimeError: for another head, or if no batch waits.
            ValueError: for labels that do not fit the batch; the state is then as it was, and the batch still waits.
        """
        raise RuntimeError(
            "head.update(labels) is for a lagged head, which takes in a batch after it has classified it; "
            f"got {type(self).__name__}, which follows no class means. Leave the call out: this head needs no labels."
        )

    @abstractmethod
    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        """Logits in training mode, (num_samples, num_classes), after which the state has taken in the batch.

        Args:
            points: (num_samples, feature_dim), on the sphere.
            labels: (num_samples,), int64, or (num_samples, num_classes), soft, in the dtype of the points; for a head that needs
                none, (0,) where none were given.
        """

    def on_sphere(self, features: Tensor) -> Tensor:
        """The points that the weight is multiplied with, of the features' shape: f = scale h/|h|, or the features.

        They are float32 or wider.
        """
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        if self.scale is None:
            return features
        norms = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        scales = torch.where(norms > SMALLEST_NORM, self.scale / norms.clamp(min=SMALLEST_NORM), 0.0)
        # One product: normalizing and then scaling would take more temporaries, above all in the backward pass.
        return features * scales

    def _centered(self, points: Tensor, labels: Tensor) -> Tensor:
        if self.running_mean is None:
            return points
        mean = batch_mean(points, labels)
        checked = looks_at_values(self.check_values, points.device)
        self.running_mean.update(mean.value, is_known=mean.is_known, checked=checked)
        return points - mean.value

    @torch.no_grad()
    def export(self, *, rms_norm: bool = True) -> nn.Module:
        """The eval-mode logits as a module of stock torch layers, which needs this package neither to load nor to run.

        A linear layer; before it, for features on a sphere, an RMSNorm without parameters, which is the projection on a sphere of
        radius sqrt(feature_dim). The linear layer's weight makes up for the radius.

        Args:
            rms_norm: whether that is an `nn.RMSNorm`; if not, a graph of plain operations does the same, for
                `torch.onnx.export(..., dynamo=False)`, which does not know the layer.
        """
        linear = nn.Linear(self.feature_dim, self.num_classes).to(self.weight)
        linear.bias.copy_(self.bias)
        if self.scale is None:
            linear.weight.copy_(self.weight)
            return linear.eval()
        linear.weight.copy_(self.weight * (self.scale / math.sqrt(self.feature_dim)))
        epsilon = SMALLEST_NORM**2 / self.feature_dim
        sphere: nn.Module = nn.RMSNorm(self.feature_dim, eps=epsilon, elementwise_affine=False)
        if not rms_norm:
            sphere = symbolic_trace(lambda features: features * (features.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt())
        return nn.Sequential(sphere, linear).eval()

    def extra_repr(self) -> str:
        """What `print(head)` says beside the submodules."""
        return f"feature_dim={self.feature_dim}, num_classes={self.num_classes}, scale={self.scale}"
