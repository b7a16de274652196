"""The unconstrained feature model: features that are free variables, without a network."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.experiments.backbones.backbone import Backbone, check_size


class UnconstrainedFeatures(Backbone):
    """One free feature for each sample: inputs are the samples' indices. Usually every step takes all samples at once.

    The initial entries are drawn from N(0, 1/feature_dim), so the rows have norms of about 1. The paper does not state its own.
    AGD takes the features for a weight of num_samples outputs and feature_dim inputs, and its initial rows have norm 1 in root mean
    square if num_samples >= feature_dim. For heads that normalize features the transposed reading, a linear layer on one-hot
    indices, gives the same training: both move the features by the same share of their norm.

    Args:
        num_samples: N.
        feature_dim: d.
        generator: source of the initial features; None takes torch's global generator.

    Raises:
        ValueError: for sizes that are not positive.
    """

    def __init__(self, num_samples: int, feature_dim: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__(feature_dim)
        check_size("num_samples", num_samples)
        self.num_samples = num_samples
        initial = nn.init.normal_(torch.empty(num_samples, feature_dim), std=feature_dim**-0.5, generator=generator)
        self.features = nn.Parameter(initial)

    def forward(self, inputs: Tensor) -> Tensor:
        """The features of the samples asked for.

        Args:
            inputs: indices, (n,), int64, each in 0 ... num_samples - 1, in any order and number.

        Returns:
            (n, feature_dim).

        Raises:
            ValueError: for anything else.
        """
        self._check(inputs)
        return functional.embedding(inputs, self.features)

    def _check(self, indices: Tensor) -> None:
        if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1:
            received = f"shape {tuple(indices.shape)} of {indices.dtype}" if isinstance(indices, Tensor) else type(indices).__name__
            raise ValueError(f"indices must be a one-dimensional tensor of torch.int64; got {received}.")
        # A compiled graph leaves the range to the embedding, which checks it too, in fewer words.
        if torch.compiler.is_compiling() or indices.numel() == 0:
            return
        lowest, highest = (int(index) for index in torch.aminmax(indices))
        if lowest < 0 or highest >= self.num_samples:
            raise ValueError(
                f"indices must be in 0 ... num_samples - 1 = {self.num_samples - 1}; got values from {lowest} to {highest}."
            )

    def extra_repr(self) -> str:
        """What `print(backbone)` says."""
        return f"num_samples={self.num_samples}, feature_dim={self.feature_dim}"
