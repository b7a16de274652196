"""The head as a loss, for loops that know losses of embeddings and no classifier."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from guided_collapse.heads.nearest import NearestETFHead


class NearestETFLoss(nn.Module):
    """The cross-entropy of embeddings classified by the simplex ETF nearest to their own class means.

    It takes the place of a loss of pytorch-metric-learning that has classes, such as its NormalizedSoftmaxLoss, and has no
    parameters, so it needs no optimizer of its own. In training mode it takes in every batch; in eval mode it measures alone.

    Args:
        feature_dim: d, the width of the embeddings.
        num_classes: C, at least 2.
        options: of `NearestETFHead`, such as `scale` and `lagged`.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFLoss
        >>> loss_of = NearestETFLoss(8, 3, scale=10.0)
        >>> embeddings = torch.randn(6, 8, requires_grad=True)
        >>> loss_of(embeddings, torch.tensor([0, 1, 2, 0, 1, 2])).backward()
        >>> loss_of.get_logits(embeddings).shape
        torch.Size([6, 3])
    """

    def __init__(self, feature_dim: int, num_classes: int, **options: Any) -> None:
        super().__init__()
        self.head = NearestETFHead(feature_dim, num_classes, **options)

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> Tensor:
        """The mean loss of a batch, a scalar.

        Args:
            embeddings: (num_samples, feature_dim).
            labels: (num_samples,), class indices.
            indices_tuple: None, what trainers pass on that have no miner.

        Raises:
            ValueError: for pairs or triplets of a miner, and for a batch that does not fit.
        """
        if indices_tuple is not None:
            raise ValueError(
                "indices_tuple must be None: every sample counts once, in no pairs or triplets; got some. Use no miner."
            )
        return cross_entropy(self.head(embeddings, labels), labels.long())

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """The logits of embeddings as eval mode gives them, (num_samples, num_classes), in whichever mode the loss is."""
        training = self.head.training
        try:
            logits: Tensor = self.head.eval()(embeddings)
        finally:
            self.head.train(training)
        return logits
