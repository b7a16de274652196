"""A backbone and a head, joined."""

import copy

from torch import Tensor, nn

from guided_collapse.heads.head import Head


class Classifier(nn.Module):
    """`model(inputs, labels)` in training mode, `model(inputs)` in eval mode.

    Args:
        backbone: maps inputs to features, (num_samples, feature_dim).
        head: maps features to logits.
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """The logits of a batch, (num_samples, num_classes); labels, (num_samples,), are required in training mode."""
        logits: Tensor = self.head(self.backbone(inputs), labels)
        return logits

    def export(self) -> nn.Module:
        """A copy of the backbone and the exported head, in eval mode: a model that takes inputs alone and needs no labels."""
        return nn.Sequential(copy.deepcopy(self.backbone), self.head.export()).eval()
