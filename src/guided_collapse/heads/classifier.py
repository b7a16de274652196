"""A backbone and a head, joined."""

import copy

from torch import Tensor, nn

from guided_collapse.heads.head import Head
from guided_collapse.heads.shareable import Shareable


class Classifier(Shareable):
    """`model(inputs, labels)` in training mode, `model(inputs)` in eval mode, and always for a head that needs no labels.

    Args:
        backbone: maps inputs to features, (num_samples, feature_dim).
        head: maps features to logits.

    Example:
        >>> import torch
        >>> from guided_collapse import Classifier, NearestETFHead
        >>> model = Classifier(torch.nn.Linear(8, 4), NearestETFHead(4, 3))
        >>> inputs, labels = torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> model(inputs, labels).shape, model.eval()(inputs).shape
        (torch.Size([6, 3]), torch.Size([6, 3]))
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """The logits of a batch, (num_samples, num_classes) or (..., num_classes); labels as the head takes them."""
        logits: Tensor = self.head(self.backbone(inputs), labels)
        return logits

    def points(self, inputs: Tensor) -> Tensor:
        """What the head's weight is multiplied with, (num_samples, feature_dim): the features on their sphere, if the head has one.

        This is what to measure: `metric.update(model.points(inputs), labels)`. The head takes in nothing, whatever the mode is.
        """
        return self.head.on_sphere(self.backbone(inputs))

    def export(self, *, rms_norm: bool = True) -> nn.Module:
        """A copy of the backbone and the exported head, in eval mode: a model that takes inputs alone and needs no labels.

        The head is exported in the backbone's floating-point type.

        Args:
            rms_norm: as in `Head.export`.
        """
        backbone = copy.deepcopy(self.backbone)
        head = self.head.export(rms_norm=rms_norm)
        dtype = next((parameter.dtype for parameter in backbone.parameters() if parameter.is_floating_point()), None)
        return nn.Sequential(backbone, head if dtype is None else head.to(dtype)).eval()
