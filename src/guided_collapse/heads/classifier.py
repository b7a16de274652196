"""A backbone and a head, joined."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from torch import Tensor, nn

from guided_collapse.heads.head import Head, exported_unit_norm, unit_norm


class Classifier(nn.Module):
    """`model(inputs, labels)` in training mode, `model(inputs)` in eval mode, and always for a head that needs no labels.

    Args:
        backbone: maps inputs to features, (num_samples, feature_dim).
        head: maps features to logits; a `Head`, or any module that takes features alone, such as `nn.Linear`.
        neck: the width of the backbone's features, if it is not the head's: a learned linear layer maps the one to the other. It
            has a bias, because an older model's features, to which an `AnchoredHead` leads, need not lie around the origin.

    Example:
        >>> import torch
        >>> from guided_collapse import Classifier, NearestETFHead
        >>> model = Classifier(torch.nn.Linear(8, 4), NearestETFHead(4, 3))
        >>> inputs, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> model(inputs, labels).shape, model.eval()(inputs).shape
        (torch.Size([6, 3]), torch.Size([6, 3]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, neck: int | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = None if neck is None else _neck(neck, head, backbone)
        self.head = head

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """The logits of a batch, (num_samples, num_classes) or (..., num_classes); labels as the head takes them."""
        features = self.features(inputs)
        logits: Tensor = self.head(features, labels) if isinstance(self.head, Head) else self.head(features)
        return logits

    def features(self, inputs: Tensor) -> Tensor:
        """What the head takes, (num_samples, feature_dim): the backbone's features, through the neck if there is one."""
        features: Tensor = self.backbone(inputs)
        return features if self.neck is None else self.neck(features)

    def embed(self, inputs: Tensor) -> Tensor:
        """What goes into an index, (num_samples, feature_dim), of unit norm: `head.embed` of the features, or h/|h|.

        Compare embeddings by dot products. It changes no state; call `eval()` first, for the sake of the backbone.
        """
        features = self.features(inputs)
        return self.head.embed(features) if isinstance(self.head, Head) else unit_norm(features)

    def points(self, inputs: Tensor) -> Tensor:
        """What the head's weight multiplies, (num_samples, feature_dim): the features, on their sphere if the head has one.

        This is what to measure: `metric.update(model.points(inputs), labels)`. It changes no state, whatever the mode.
        """
        features = self.features(inputs)
        return self.head.on_sphere(features) if isinstance(self.head, Head) else features

    def export(self, *, embedding: bool = False, rms_norm: bool = True) -> nn.Module:
        """A copy in eval mode of stock torch layers after the backbone; it takes inputs alone and never needs labels.

        The head is exported in the backbone's floating-point type. With `embedding`, the copy computes `embed` instead of the
        logits. `rms_norm` is that of `Head.export`.
        """
        backbone, neck = copy.deepcopy(self.backbone), copy.deepcopy(self.neck)
        if isinstance(self.head, Head):
            head = self.head.export(embedding=embedding, rms_norm=rms_norm)
        else:
            head = exported_unit_norm(_width(self.head), rms_norm=rms_norm) if embedding else copy.deepcopy(self.head)
        like = _floating_parameter(backbone)
        head = head if like is None else head.to(like.dtype)
        return nn.Sequential(backbone, *(() if neck is None else (neck,)), head).eval()

    def save_pretrained(self, folder: str | Path, *, data: str | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Writes `model.safetensors`, `config.json` and a model card, `README.md`, to a folder.

        Args:
            folder: created if necessary; these files in it are replaced.
            data: what the model was trained on, for the card.
            metrics: for the card, such as `collapse_of(model, loader).scalars()`.

        Raises:
            ValueError: for metrics that are not finite, or if safetensors is missing.
        """
        from guided_collapse.integrations import hub

        hub.save(self, Path(folder), data=data, metrics=metrics)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, backbone: nn.Module, revision: str | None = None, token: str | bool | None = None
    ) -> Self:
        """A saved model, in eval mode. Nothing is unpickled.

        Args:
            source: a folder, or the name of a repository on the Hugging Face hub.
            backbone: built as it was when the model was saved; its weights are replaced.
            revision: branch, tag or commit of the repository.
            token: for a private repository.

        Raises:
            ValueError: if there is no such model, it is damaged, it does not fit the backbone, or a package is missing.
        """
        from guided_collapse.integrations import hub

        return hub.load(cls, source, backbone=backbone, revision=revision, token=token)

    def push_to_hub(
        self,
        repository: str,
        *,
        data: str | None = None,
        metrics: Mapping[str, float] | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
    ) -> str:
        """Uploads what `save_pretrained` writes to the Hugging Face hub and returns the address of the model's page.

        Args:
            repository: "name/model"; created if necessary.
            data, metrics: as for `save_pretrained`.
            private: whether a new repository is private; None leaves it to the owner's default.
            token: with write access; None uses the one of `hf auth login`.

        Raises:
            ValueError: as for `save_pretrained`, or if huggingface_hub is missing.
        """
        from guided_collapse.integrations import hub

        return hub.push(self, repository, data=data, metrics=metrics, private=private, token=token)


def _neck(width: int, head: nn.Module, backbone: nn.Module) -> nn.Linear:
    """The layer from a backbone to a head, on the backbone's device and in its type."""
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(f"neck must be the width of the backbone's features, a whole number; got {width!r}.")
    if width < 1:
        raise ValueError(f"neck must be the width of the backbone's features, at least 1; got {width}.")
    neck, like = nn.Linear(width, _width(head)), _floating_parameter(backbone)
    return neck if like is None else neck.to(like)


def _width(head: nn.Module) -> int:
    """The number of features that a head takes."""
    width = getattr(head, "in_features", None)
    if not isinstance(width, int):
        raise TypeError(f"head must have in_features, as heads and nn.Linear have; got a {type(head).__name__} without.")
    return width


def _floating_parameter(module: nn.Module) -> nn.Parameter | None:
    return next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)
