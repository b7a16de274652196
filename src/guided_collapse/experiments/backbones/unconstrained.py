"""The unconstrained feature model: features that are free variables, without a network."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.experiments.backbones.backbone import Backbone, check_size


class UnconstrainedFeatures(Backbone):
    """One free feature vector per sample; inputs are sample indices. Usually every step takes all samples at once.

    The initial entries are drawn from N(0, 1/feature_dim), so the rows have norms of about 1; the paper does not state its own.
    AGD treats the features as a weight with num_samples outputs and feature_dim inputs, and its initial rows have root mean square
    norm 1 if num_samples >= feature_dim. For heads that normalize features the transposed reading, a linear layer on one-hot
    indices, trains identically: both move the features by the same fraction of their norm.
    """

    def __init__(self, num_samples: int, feature_dim: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__(feature_dim)
        check_size("num_samples", num_samples)
        self.num_samples = num_samples
        initial = nn.init.normal_(torch.empty(num_samples, feature_dim), std=feature_dim**-0.5, generator=generator)
        self.features = nn.Parameter(initial)

    def forward(self, inputs: Tensor) -> Tensor:
        """The features, (n, feature_dim), of the samples with these indices, (n,), int64 in 0 ... num_samples - 1, in any order."""
        if not isinstance(inputs, Tensor) or inputs.dtype != torch.int64 or inputs.ndim != 1:
            received = f"shape {tuple(inputs.shape)} of {inputs.dtype}" if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(f"indices must be a one-dimensional tensor of torch.int64; got {received}.")
        # A compiled graph leaves the range check to the embedding.
        if not torch.compiler.is_compiling() and inputs.numel() > 0:
            lowest, highest = (int(index) for index in torch.aminmax(inputs))
            if lowest < 0 or highest >= self.num_samples:
                raise ValueError(
                    f"indices must be in 0 ... num_samples - 1 = {self.num_samples - 1}; got values from {lowest} to {highest}."
                )
        return functional.embedding(inputs, self.features)
