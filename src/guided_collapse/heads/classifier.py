"""`Classifier`, which joins a backbone and a head."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from torch import Tensor, nn

from guided_collapse.geometry.simplex import check_integer
from guided_collapse.heads.head import Head, exported_unit_norm, unit_norm


class Classifier(nn.Module):
    """A backbone followed by a head: `model(inputs, labels)` in training mode, `model(inputs)` in eval mode.

    If the head needs no labels, `model(inputs)` works in training mode, too.

    Args:
        backbone: maps inputs to features, (num_samples, feature_dim).
        head: maps features to logits, (num_samples, num_classes): a `Head`, or any module that takes only features, such as
            `nn.Linear`.
        neck: the width of the backbone's features, if it differs from the head's feature_dim; adds a learned linear layer from this
            width to feature_dim. The layer has a bias, because the features that an `AnchoredHead` aims at need not be centered.

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
        if isinstance(backbone, Head) or not isinstance(head, nn.Module):
            raise TypeError(
                f"Classifier takes a backbone, then a head, as modules; got {_kind(backbone)} and {_kind(head)}. "
                "Use Classifier(backbone, NearestETFHead(feature_dim, num_classes))."
            )
        self.backbone = backbone
        self.neck = None if neck is None else _neck(neck, head, backbone)
        self.head = head

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Returns the logits, (num_samples, num_classes) or (..., num_classes). For labels, see `Head.forward`."""
        features = self.features(inputs)
        logits: Tensor = self.head(features, labels) if isinstance(self.head, Head) else self.head(features)
        return logits

    def features(self, inputs: Tensor) -> Tensor:
        """Returns the input of the head, (num_samples, feature_dim): the features after the neck, if there is one."""
        features: Tensor = self.backbone(inputs)
        return features if self.neck is None else self.neck(features)

    def embed(self, inputs: Tensor) -> Tensor:
        """Returns embeddings for an index, (num_samples, feature_dim), of unit norm: `head.embed(features)`, or h/|h|.

        Compare embeddings by dot products. Does not change the head's state. Call `model.eval()` first, so that the backbone
        runs in eval mode.
        """
        features = self.features(inputs)
        return self.head.embed(features) if isinstance(self.head, Head) else unit_norm(features)

    def points(self, inputs: Tensor) -> Tensor:
        """Returns the input to the weight, (num_samples, feature_dim): the features or, for a `Head`, the features on the sphere.

        Measure collapse on these: `metric.update(model.points(inputs), labels)`. Does not change the head's state in any mode.
        """
        features = self.features(inputs)
        return self.head.on_sphere(features) if isinstance(self.head, Head) else features

    def export(self, *, embedding: bool = False, rms_norm: bool = True) -> nn.Module:
        """Returns a copy in eval mode that takes only inputs, with the head as stock torch layers.

        Args:
            embedding: whether to export `embed` instead of the logits.
            rms_norm: as for `Head.export`.

        Returns:
            An `nn.Sequential` of the backbone, the neck if there is one, and the head in the backbone's dtype.
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
            folder: created if necessary; existing files of a saved model are replaced.
            data: what the model was trained on, for the card.
            metrics: for the card, such as `collapse_of(model, loader).scalars()`.

        Raises:
            ValueError: if metrics are not finite, the folder holds files of another library, or safetensors is missing.
            TypeError: if the head is neither a head of this library nor `nn.Linear`.
        """
        from guided_collapse.integrations import hub

        hub.save(self, Path(folder), data=data, metrics=metrics)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, backbone: nn.Module, revision: str | None = None, token: str | bool | None = None
    ) -> Self:
        """Returns a saved model, in eval mode, loaded without unpickling anything.

        Args:
            source: a folder, or the name of a repository on the Hugging Face Hub.
            backbone: a module with the architecture of the saved model's backbone; its weights are replaced.
            revision: branch, tag or commit of the repository.
            token: for a private repository.

        Raises:
            ValueError: if the model does not exist, is damaged or does not match the backbone, or if a package is missing.
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
        """Uploads what `save_pretrained` writes to the Hugging Face Hub and returns the address of the model's page.

        Args:
            repository: "name/model"; created if necessary.
            data, metrics: as for `save_pretrained`.
            private: whether a new repository is private; if None, the owner's default.
            token: with write access; if None, the one from `hf auth login`.

        Raises:
            ValueError: as for `save_pretrained`, or if huggingface_hub is missing.
        """
        from guided_collapse.integrations import hub

        return hub.push(self, repository, data=data, metrics=metrics, private=private, token=token)


def _neck(width: int, head: nn.Module, backbone: nn.Module) -> nn.Linear:
    """Returns the linear layer between backbone and head, on the backbone's device and in its dtype."""
    check_integer("neck", width, at_least=1)
    neck, like = nn.Linear(int(width), _width(head)), _floating_parameter(backbone)
    return neck if like is None else neck.to(like)


def _kind(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"


def _width(head: nn.Module) -> int:
    """Returns the feature_dim of a `Head` or linear layer."""
    width = getattr(head, "in_features", None)
    if not isinstance(width, int):
        raise TypeError(f"head must have in_features, as heads and nn.Linear do; got a {type(head).__name__} without it.")
    return width


def _floating_parameter(module: nn.Module) -> nn.Parameter | None:
    return next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)
