"""The standard classifier: a learned linear layer, on the paper's spheres or without them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from guided_collapse.heads.head import Head
from guided_collapse.heads.snapshot import snapshot


class CosineHead(Head):
    """A learned linear layer.

    With `normalize` it is the paper's standard head: features have norm `scale` and the rows of the weight norm 1. The rows
    are brought back to norm 1 at every forward pass in training mode and the gradient is the tangent one, so plain gradient descent
    on the weight is Riemannian gradient descent on a product of spheres. (A weight that is computed, as by `weight_norm` or under
    `functional_call`, is normalized where it is used and left as it is; an nn.Parameter that `functional_call` puts in its place is
    kept at norm 1 like its own.) Without it, it is an ordinary linear layer on the features as they are.

    Args:
        feature_dim: d.
        num_classes: C, at least 2.
        normalize: whether weight rows and features are normalized.
        scale: tau, the norm of normalized features; without effect on others.
        center: whether features are centered by their global mean; the paper's standard head does not.
        learned_bias: whether a bias is learned too. AGD refuses it, as it refuses every one-dimensional parameter.
        generator: source of the initial weight; None takes torch's global generator.
        check_values: whether to look at values at every step, which waits for the device; None does on a CPU.

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
        normalize: bool = True,
        scale: float = 5.0,
        center: bool = False,
        learned_bias: bool = False,
        generator: torch.Generator | None = None,
        check_values: bool | None = None,
    ) -> None:
        super().__init__(
            feature_dim,
            num_classes,
            scale=scale if normalize else None,
            center=center,
            check_values=check_values,
        )
        self.normalize = normalize
        self.learned_weight = nn.Parameter(torch.empty(num_classes, feature_dim))
        self.learned_bias = nn.Parameter(torch.empty(num_classes)) if learned_bias else None
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the weight anew, sets a bias to zero, and forgets all batches."""
        super().reset_parameters()
        bound = self.feature_dim**-0.5
        nn.init.uniform_(self.learned_weight, -bound, bound, generator=generator)
        if self.learned_bias is not None:
            nn.init.zeros_(self.learned_bias)

    @property
    def weight(self) -> Tensor:
        """W, (num_classes, feature_dim), with rows of norm 1 if the head normalizes."""
        # A copy, because training writes to the parameter, perhaps before the backward pass.
        return functional.normalize(snapshot(self.learned_weight), dim=1) if self.normalize else self.learned_weight

    @property
    def bias(self) -> Tensor:
        """b = learned bias - W f_G, (num_classes,)."""
        centering_bias = self._centering_bias()
        return centering_bias if self.learned_bias is None else centering_bias + self.learned_bias

    def _training_logits(self, points: Tensor, labels: Tensor) -> Tensor:
        weight: Tensor = self.learned_weight
        if self.normalize:
            if isinstance(weight, nn.Parameter):
                with torch.no_grad():
                    weight.copy_(functional.normalize(weight, dim=1))
            # The copy lets several forward passes share one backward pass: the next one writes to the parameter again.
            weight = functional.normalize(snapshot(weight), dim=1)
        bias = None if self.learned_bias is None else self.learned_bias.to(points.dtype)
        return functional.linear(self._centered(points, labels), weight.to(points.dtype), bias)

    def extra_repr(self) -> str:
        """What `print(head)` says beside the submodules."""
        return f"{super().extra_repr()}, normalize={self.normalize}"
