"""A classifier frozen at the geometry of an older model, so that new embeddings match an existing index."""

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

from guided_collapse.geometry import nearest_frame
from guided_collapse.geometry.operations import is_transformed
from guided_collapse.geometry.simplex import center_classes
from guided_collapse.heads.batch import Batch
from guided_collapse.heads.checks import checks_values, largest_finite
from guided_collapse.heads.head import Head, Options, unit_norm
from guided_collapse.heads.sphere import SMALLEST_NORM
from guided_collapse.heads.state import SinglePrecisionState, state_dtype

if TYPE_CHECKING:
    from guided_collapse.metrics.measure import Loader


class AnchoredHead(SinglePrecisionState, Head):
    """A classifier head frozen at the class means of an older model, so that a new backbone learns to embed as the old one did.

        logits = scale e W',      e = N(h) = h/|h|,      W = N((1 - frame) N(A) + frame F)

    N normalizes rows, A holds the anchors, and F is the frame nearest to the centered N(A): a simplex ETF, or a tight frame for
    num_classes > feature_dim + 1. The head has no parameters, needs no labels, and behaves the same in training and eval mode.

    Use the embedding e = `head.embed(features)`, or `Classifier.embed(inputs)`, both for items of an index and for queries. Compare
    it to the old gallery by dot products. The gallery holds the old model's features divided by their norm, with nothing
    subtracted, as `Classifier.embed` and `embeddings_of` return them for any old model. If the index was centered by a constant c,
    so that it holds N(g - c) for unit vectors g, pass `center=c`: then e = N(N(h) - c), and the anchors become N(A - c).

    Args:
        anchors: A, (num_classes, feature_dim), the old model's class means of unit-norm features; see `from_model`. Only their
            directions, seen from the center, matter.
        frame: how far the rows move from the anchors (0) to their nearest frame (1).
        scale: the factor that multiplies the cosines; if None, chosen from the sizes (see `Head`).
        center: c, (feature_dim,), a constant that is saved with the rows; if None, nothing is subtracted.
        check_values, device, dtype: as for `Head`.

    Raises:
        TypeError, ValueError: if anchors or center have the wrong type or shape, are not finite, or leave a row without a
            direction.

    Example:
        >>> import torch
        >>> from guided_collapse import AnchoredHead, Classifier
        >>> old = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        >>> inputs, labels = torch.randn(10, 4), torch.arange(10) % 5  # the old model knows three of the five classes
        >>> head = AnchoredHead.from_model(old, [(inputs, labels)])
        >>> new = Classifier(torch.nn.Linear(4, 16), head, neck=16)  # from 16 features to the gallery's 8
        >>> new(inputs).shape, new.embed(inputs).shape
        (torch.Size([10, 5]), torch.Size([10, 8]))
    """

    needs_labels = False
    rows: Tensor
    """W, (num_classes, feature_dim). Not named `weight`, so that the checkpoint of a linear layer does not load by accident."""
    center: Tensor | None

    def __init__(
        self,
        anchors: Tensor,
        *,
        frame: float = 0.0,
        scale: float | None = None,
        center: Tensor | None = None,
        check_values: bool | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        _check_matrix(anchors, "anchors")
        options: Options = {"scale": scale, "check_values": check_values, "device": device, "dtype": dtype}
        super().__init__(anchors.shape[1], anchors.shape[0], center=False, **options)
        if not 0 <= frame <= 1:
            raise ValueError(f"frame must be between 0 (the anchors) and 1 (their nearest frame); got {frame}.")
        rows = _rows_from(anchors, center, "anchors")
        if frame > 0:
            nearest = nearest_frame(center_classes(rows)).weight
            rows = _unit_rows((1 - frame) * rows + frame * nearest, "anchors drawn toward their nearest frame")

        def state(value: Tensor) -> Tensor:
            return torch.empty(value.shape, device=device, dtype=state_dtype(dtype)).copy_(value.detach())

        self.register_buffer("rows", state(rows))
        self.register_buffer("center", None if center is None else state(center))

    @classmethod
    def from_model(
        cls,
        old_model: nn.Module,
        loader: "Loader",
        *,
        num_classes: int | None = None,
        layer: str | None = None,
        classifier: str | nn.Linear | None = None,
        **options: Any,
    ) -> Self:
        """Returns a head anchored at the class means of an old model's embeddings, measured in one pass over a loader.

        The embeddings are those of `embeddings_of`. The classes are those of the loader, including any that the old model never
        saw. With several processes, each process measures its share of the data, and all get the same head.

        Args:
            old_model, loader, layer, classifier: as for `collapse_of`. Use clean data, without augmentation.
            num_classes: C; if None, the largest label + 1. Every class needs samples.
            options: for the constructor, such as `frame` and `scale`.

        Raises:
            TypeError, ValueError: as for the constructor; also if the loader has no labels, a label is out of range, or a class has
                no samples.
        """
        from guided_collapse.metrics.embeddings import class_means_of

        return cls(class_means_of(old_model, loader, num_classes=num_classes, layer=layer, classifier=classifier), **options)

    def extended(self, means: Tensor, *, scale: float | None = None) -> Self:
        """Returns a new head with this head's rows, unchanged, followed by rows for new classes.

        Args:
            means: (num_new_classes, feature_dim), class means of the embeddings of the old model, or of a model trained with this
                head: `embeddings[labels == c].mean(dim=0)`. If this head has a center, pass means of h/|h|, like the anchors, not
                means of what `embed` returns.
            scale: as for the constructor; if None, the scale of this head.
        """
        _check_matrix(means, "means", self.feature_dim)
        added = _rows_from(means, self.center, "means").to(self.rows)
        config = self.config() | {"num_classes": self.num_classes + len(means)}
        if scale is not None:
            config["scale"] = scale
        head = self.from_config(**config, check_values=self.check_values, device=self.rows.device, dtype=self.rows.dtype)
        head.rows.copy_(torch.cat([self.rows, added]))
        if head.center is not None and self.center is not None:
            head.center.copy_(self.center)
        return head.train(self.training)

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim), with unit rows."""
        return self.rows

    def _directions(self, features: Tensor) -> Tensor:
        points = super()._directions(features)
        return points if self.center is None else unit_norm(points - self.center.to(points.dtype))

    def on_sphere(self, features: Tensor) -> Tensor:
        """Returns scale e, the input to W, (..., feature_dim), in float32 or wider."""
        return super().on_sphere(features) if self.center is None else self.scale * self._directions(features)

    def _training_logits(self, batch: Batch) -> Tensor:
        return self._constant_logits(batch.features)

    @torch.no_grad()
    def export(self, *, embedding: bool = False, rms_norm: bool = True) -> nn.Module:
        """Returns the head as stock torch layers, as `Head.export` does; they subtract the center, if there is one."""
        exported = super().export(embedding=embedding, rms_norm=rms_norm)
        if self.center is None:
            return exported
        center, unit = self.center.clone(), super().export(embedding=True, rms_norm=rms_norm)
        return nn.Sequential(unit, symbolic_trace(lambda points: points - center), exported).eval()

    def config(self) -> dict[str, Any]:
        """Returns the sizes, the scale, and whether there is a center, for `from_config`; rows and center are in the state dict."""
        return super().config() | {"centered": self.center is not None}

    @classmethod
    def from_config(cls, **config: Any) -> Self:
        """Returns a head of these sizes for a state dict to fill; until then, all rows are equal and the center is zero."""
        feature_dim, num_classes, centered = (config.pop(name) for name in ("feature_dim", "num_classes", "centered"))
        center = torch.zeros(feature_dim, device="cpu") if centered else None
        return cls(torch.ones(num_classes, feature_dim, device="cpu"), center=center, **config)


def compatibility_loss(embeddings: Tensor, old_embeddings: Tensor) -> Tensor:
    """Returns the mean of 1 - cosine between new and old embeddings of the same samples, from 0 to 2.

    It pulls a new model toward an old gallery whose classes are unknown. Use it alone, or add it with a weight to the loss of
    labeled samples. Old embeddings are constants of any norm; with an `AnchoredHead` that has a center, pass old embeddings
    centered by it, as in the index. Zero vectors have no direction and get no gradient.

    Args:
        embeddings: (num_samples, feature_dim), such as those of `Classifier.embed`.
        old_embeddings: (num_samples, feature_dim), of the same samples in the same order.

    Raises:
        TypeError, ValueError: if types or shapes do not fit, and on a CPU if values are NaN or infinite.

    Example:
        >>> import torch
        >>> from guided_collapse import AnchoredHead, Classifier, compatibility_loss
        >>> model = Classifier(torch.nn.Linear(4, 8), AnchoredHead(torch.randn(3, 8)))
        >>> inputs, labels, old_embeddings = torch.randn(6, 4), torch.arange(6) % 3, torch.randn(6, 8)
        >>> features = model.features(inputs)  # the backbone runs once
        >>> loss = torch.nn.functional.cross_entropy(model.head(features), labels)
        >>> loss = loss + 0.5 * compatibility_loss(model.head.embed(features), old_embeddings)
        >>> loss.backward()
    """
    for name, value in (("embeddings", embeddings), ("old_embeddings", old_embeddings)):
        _check_matrix(value, name)
    if embeddings.shape != old_embeddings.shape or len(embeddings) == 0:
        raise ValueError(
            "embeddings and old_embeddings must have equal shapes, with a row per sample and at least one sample; "
            f"got {tuple(embeddings.shape)} and {tuple(old_embeddings.shape)}. Give the model a neck, or a head of the old width."
        )
    difference = unit_norm(embeddings) - unit_norm(old_embeddings.detach()).to(embeddings.device)
    # Half the squared distance of unit vectors is 1 - cosine, without the cancellation between nearly equal vectors.
    return difference.square().sum(dim=1).mean() / 2


def _rows_from(means: Tensor, center: Tensor | None, name: str) -> Tensor:
    """Returns the unit vectors that point from the center to the means, (num_classes, feature_dim), in float64 on the CPU."""
    rows = means.detach().to("cpu", torch.float64)
    if center is not None:
        _check_tensor(center, "center")
        if center.shape != means.shape[1:]:
            raise ValueError(f"center must be (feature_dim,) = {tuple(means.shape[1:])}; got {tuple(center.shape)}.")
        rows = rows - center.detach().to(rows)
        name += " minus the center"
    return _unit_rows(rows, name)


def _unit_rows(rows: Tensor, name: str) -> Tensor:
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if zero := (norms.flatten() <= SMALLEST_NORM).nonzero().flatten().tolist():
        raise ValueError(f"{name} must have a direction for every class; got zero for class {zero[0]}. Leave out such classes.")
    return rows / norms


def _check_matrix(value: Tensor, name: str, width: int | None = None) -> None:
    """Raises a TypeError or ValueError unless the value is a floating-point matrix, with `width` columns if given.

    On a CPU, all entries must be finite.
    """
    _check_tensor(value, name)
    if value.ndim != 2 or width not in (None, value.shape[1]):
        wanted = "feature_dim" if width is None else f"feature_dim={width}"
        raise ValueError(f"{name} must be a matrix with {wanted} columns and a row per class or sample; got {tuple(value.shape)}.")


def _check_tensor(value: Tensor, name: str) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        found = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a floating-point tensor; got {found}.")
    if checks_values(None, value.device) and not torch.compiler.is_compiling() and not is_transformed():
        largest_finite(value, name)
