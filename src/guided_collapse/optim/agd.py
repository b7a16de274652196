"""Automatic gradient descent (Bernstein et al., 2023), implemented from its formula."""

import math
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn


class AGD(torch.optim.Optimizer):
    r"""Automatic gradient descent (AGD; Bernstein et al., 2023), which sets its step size from the gradient.

    Call `init_weights()` once before training: the theory assumes semi-orthogonal weights.

    Layer $l$ of $L$ has a weight with $d_l$ outputs, $d_{l-1}$ inputs and $k_l$ positions: one position in a linear layer, and one
    for every entry of the kernel in a convolution. Every (outputs, inputs) slice $W$, one per position, with gradient $g$, moves by

    $$
    \Delta W = -\text{gain} \cdot \text{lr} \cdot \frac{\eta}{L} \, s_l \, \frac{g}{\lVert g \rVert_F}, \qquad
    s_l = \sqrt{\frac{d_l}{d_{l-1} k_l}}, \qquad
    \eta = \log \frac{1 + \sqrt{1 + 4 G}}{2},
    $$

    where $G = \frac{1}{L} \sum_l s_l \sum \lVert g \rVert_F$, the inner sum running over the slices of layer $l$.

    All parameters of all groups count as layers of one network; frozen parameters neither count nor move. There is no learning rate
    to tune. Every group still has an "lr", 1 by default, so that torch's learning-rate schedulers can scale the step.

    Args:
        params: parameters of at least two dimensions, or parameter groups, which may have their own "gain" and "lr".
        gain: multiplies every step. The paper on neural collapse uses 10.

    Raises:
        ValueError: for parameters with fewer than two dimensions or no entries, a gain that is not positive, or a negative lr.

    Example:
        >>> import torch
        >>> from guided_collapse import AGD
        >>> model = torch.nn.Linear(4, 3, bias=False)
        >>> optimizer = AGD(model.parameters(), gain=10.0)
        >>> optimizer.init_weights()
        >>> model(torch.ones(2, 4)).square().sum().backward()
        >>> optimizer.step()
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], *, gain: float = 1.0) -> None:
        super().__init__(params, {"gain": gain, "lr": 1.0})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group; raises a ValueError if AGD cannot train it."""
        super().add_param_group(param_group)
        try:
            _check_group(self.param_groups[-1])
        except Exception:
            del self.param_groups[-1]
            raise

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Sets every (outputs, inputs) slice to s_l times a random semi-orthogonal matrix."""
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # QR does not support half precision
        for parameter in self._layers():
            slices = [
                nn.init.orthogonal_(torch.empty(parameter.shape[:2], dtype=dtype), generator=generator)
                for _ in range(math.prod(parameter.shape[2:]))
            ]
            parameter.copy_(layer_scale(parameter) * torch.stack(slices, dim=2).reshape(parameter.shape))

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Takes one step and returns the loss of the closure, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [
            (parameter, parameter.grad, group["gain"] * group["lr"])
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.grad is not None
        ]
        if any(gradient.is_sparse for _, gradient, _ in moving):
            raise ValueError("AGD needs dense gradients; got a sparse one. Pass sparse=False to the embedding.")
        if moving:
            parameters, gradients, gains = (list(column) for column in zip(*moving, strict=True))
            automatic_step(parameters, gradients, gains, num_layers=len(self._layers()))
        return loss

    def _layers(self) -> list[Tensor]:
        """Returns the trainable parameters."""
        return [parameter for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]


def layer_scale(weight: Tensor) -> float:
    """Returns s_l = sqrt(d_l / (d_{l-1} k)) of a weight, (outputs, inputs, *positions)."""
    outputs, inputs = weight.shape[:2]
    return math.sqrt(outputs / inputs / math.prod(weight.shape[2:]))


def automatic_step(parameters: list[Tensor], gradients: list[Tensor], gains: list[float], *, num_layers: int) -> None:
    """Takes one step of AGD, in place, in float32 or wider."""
    scales = [layer_scale(parameter) for parameter in parameters]
    gradients = [gradient.to(torch.promote_types(gradient.dtype, torch.float32)) for gradient in gradients]
    norms = [torch.linalg.vector_norm(gradient, dim=(0, 1), keepdim=True) for gradient in gradients]
    sums = [scale * norm.sum().to(norms[0].device) for scale, norm in zip(scales, norms, strict=True)]
    mean = torch.stack(sums).sum() / num_layers
    # log((1 + sqrt(1 + 4 G)) / 2), without cancellation for small gradients.
    step_size = torch.log1p(2 * mean / (1 + torch.sqrt(1 + 4 * mean))) / num_layers
    factors = [
        torch.where(norm > 0, gain * scale * step_size.to(norm.device) / norm, 0.0)
        for gain, scale, norm in zip(gains, scales, norms, strict=True)
    ]
    torch._foreach_addcmul_(parameters, gradients, factors, value=-1.0)


def _check_group(group: dict[str, Any]) -> None:
    if not (group["gain"] > 0 and math.isfinite(group["gain"])):
        raise ValueError(f"gain must be a positive, finite number; got {group['gain']}.")
    if not (group["lr"] >= 0 and math.isfinite(group["lr"])):
        raise ValueError(f"lr must be a finite number, at least 0; got {group['lr']}. It multiplies the step and is usually 1.")
    for parameter in group["params"]:
        if parameter.ndim < 2 or parameter.numel() == 0:
            raise ValueError(
                "AGD trains weights with at least two dimensions, none of them empty; "
                f"got a parameter of shape {tuple(parameter.shape)}. Build layers with bias=False and BatchNorm with affine=False, "
                "or give such parameters to another optimizer."
            )
