"""A learned classifier whose logits are the scaled cosines between features and weight rows."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.heads.batch import Batch
from guided_collapse.heads.head import Head, Options
from guided_collapse.heads.state import snapshot


class CosineHead(Head):
    """A learned linear layer with normalized features and normalized weight rows (the paper's "standard" classifier).

    Every forward pass in training mode renormalizes the weight rows, and their gradient is tangent to the unit sphere, so gradient
    descent on the weight is Riemannian gradient descent on a product of spheres. A weight that is not a parameter, as with
    `weight_norm` or `torch.func.functional_call`, is normalized on use and never overwritten. The head needs no labels.

    Args:
        feature_dim: d, at least 2.
        num_classes: C, at least 2.
        scale: the factor that multiplies the cosines; if None, chosen from the sizes (see `Head`).
        center: whether to subtract the mean of the features. The paper's classifier does not.
        normalize_weight: whether weight rows have norm 1. If False, the head is a linear layer on normalized features.
        generator: for the initial weight; if None, torch's global generator.
        check_values, device, dtype: as for `Head`.

    Example:
        >>> import torch
        >>> from guided_collapse import CosineHead
        >>> head = CosineHead(8, 3)
        >>> head(torch.randn(6, 8)).shape
        torch.Size([6, 3])
        >>> head.weight.norm(dim=1).allclose(torch.ones(3))
        True
    """

    needs_labels = False

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        scale: float | None = None,
        center: bool = False,
        normalize_weight: bool = True,
        generator: torch.Generator | None = None,
        check_values: bool | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        options: Options = {"scale": scale, "check_values": check_values, "device": device, "dtype": dtype}
        super().__init__(feature_dim, num_classes, center=center, **options)
        self.normalize_weight = normalize_weight
        self.learned_weight = nn.Parameter(torch.empty(num_classes, feature_dim, device=device, dtype=dtype))
        self.reset_parameters(generator)

    def _training_logits(self, batch: Batch) -> Tensor:
        weight: Tensor = self.learned_weight
        if self.normalize_weight and isinstance(weight, nn.Parameter):
            with torch.no_grad():
                weight.copy_(functional.normalize(weight, dim=1))
        return self._logits(batch, self.weight)

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim), with unit rows if `normalize_weight`."""
        # A copy, because the next forward pass may overwrite the parameter before this one's backward pass.
        weight = snapshot(self.learned_weight)
        return functional.normalize(weight, dim=1) if self.normalize_weight else weight

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Redraws the weight and resets the running mean."""
        super().reset_parameters()
        bound = self.feature_dim**-0.5
        nn.init.uniform_(self.learned_weight, -bound, bound, generator=generator)

    def config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as plain values."""
        return super().config() | {"center": self.centering is not None, "normalize_weight": self.normalize_weight}
