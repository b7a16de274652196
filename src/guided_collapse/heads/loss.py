"""The nearest-ETF head as a loss of embeddings and labels."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from guided_collapse.heads.nearest import NearestETFHead


class NearestETFLoss(nn.Module):
    """The cross-entropy of embeddings, classified by the simplex ETF nearest to their own class means.

    A drop-in replacement for classification losses in pytorch-metric-learning, such as NormalizedSoftmaxLoss, with the same order
    of arguments. The loss has no parameters, so it needs no optimizer of its own. In eval mode, it does not update its class means.

    Args:
        num_classes: C, at least 2.
        embedding_size: d, at least 2.
        options: for `NearestETFHead`, such as `scale` and `lagged`.

    Example:
        >>> import torch
        >>> from guided_collapse import NearestETFLoss
        >>> loss = NearestETFLoss(num_classes=3, embedding_size=8, scale=10.0)
        >>> embeddings = torch.randn(6, 8, requires_grad=True)
        >>> loss(embeddings, torch.tensor([0, 1, 2, 0, 1, 2])).backward()
        >>> loss.get_logits(embeddings).shape
        torch.Size([6, 3])
    """

    def __init__(self, num_classes: int, embedding_size: int, **options: Any) -> None:
        super().__init__()
        self.head = NearestETFHead(embedding_size, num_classes, **options)

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> Tensor:
        """Returns the mean loss of a batch, a scalar.

        Args:
            embeddings: (num_samples, embedding_size).
            labels: class indices, (num_samples,).
            indices_tuple: must be None, as passed by trainers without a miner.

        Raises:
            TypeError, ValueError: for an invalid batch, and for pairs or triplets from a miner.
        """
        if indices_tuple is not None:
            raise ValueError("indices_tuple must be None, because this loss uses samples, not pairs or triplets. Remove the miner.")
        return cross_entropy(self.head(embeddings, labels), labels.long())

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Returns the eval-mode logits of embeddings, (num_samples, num_classes), even if the loss is in training mode."""
        training = self.head.training
        try:
            logits: Tensor = self.head.eval()(embeddings)
        finally:
            self.head.train(training)
        return logits
